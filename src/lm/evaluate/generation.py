"""Sample from a model: the ids of a prompt in, the ids that continue it out; legend as in lm.model.gemma3."""

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lm.core.numerics import Numerics
from lm.core.params import require
from lm.exact import functions as exact
from lm.model.gemma3 import Gemma3Model


class KVCache:
    """Keys and values of the past, two (B, K, S, D) per layer; sliding layers keep what their window reaches."""

    def __init__(self):
        self.num_tokens = 0
        self.past: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, k: Tensor, v: Tensor, window: int) -> tuple[Tensor, Tensor]:
        """Append k and v (B, K, T, D) of a layer; return what these tokens may see, keep what later ones may."""
        if layer == 0:
            self.num_tokens += k.shape[2]
        if layer in self.past:
            k, v = (torch.cat(pair, dim=2) for pair in zip(self.past[layer], (k, v), strict=True))
        first = max(0, k.shape[2] - (window - 1))
        self.past[layer] = k[:, :, first:], v[:, :, first:]
        return k, v


def filter_logits(
    logits: Tensor, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None
) -> Tensor:
    """Set unlikely entries of logits (V,) to -inf, one filter after the other; None switches a filter off.

    top_k keeps the k largest entries and those equal to the k-th; top_p the smallest set of the most likely entries
    whose probability reaches top_p (Holtzman et al., arXiv 1904.09751); min_p the entries at least min_p times as
    likely as the most likely one (Nguyen et al., arXiv 2407.01082). The most likely entry always stays.
    """
    if top_k is not None and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -math.inf)
    if top_p is not None:
        values, order = logits.sort(descending=True, stable=True)
        p = values.softmax(0)
        likelier = p.cumsum(0) - p  # the probability of all entries before
        logits = logits.index_fill(0, order[likelier >= top_p], -math.inf)
    if min_p is not None:
        logits = logits.masked_fill(logits < logits.max() + math.log(min_p), -math.inf)
    return logits


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Settings of a draw: temperature 0 takes the most likely id, above 0 the filters apply; None is off."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self):
        require(self.temperature >= 0, "temperature", self.temperature, "0 or more")
        require(self.top_k is None or self.top_k >= 1, "top_k", self.top_k, "1 or more")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            require(value is None or 0 < value <= 1, name, value, "above 0, at most 1")

    def draw(self, logits: Tensor, generator: torch.Generator, numerics: Numerics = "fast") -> int:
        """Draw one id from logits (V,) with a generator on the CPU; `numerics` are those of the softmax."""
        if self.temperature < 1e-6:  # 0, or so small that the division would overflow
            return int(logits.argmax())
        kept = filter_logits(logits / self.temperature, self.top_k, self.top_p, self.min_p)
        p = exact.softmax(kept) if numerics == "exact" else kept.softmax(0)
        # torch.multinomial draws by a logarithm, whose bits depend on the processor; sums of float64 in order do not.
        # They are made on the CPU: other devices may have no float64.
        ends = p.cpu().double().cumsum(0)
        point = torch.rand(1, generator=generator, dtype=torch.float64) * ends[-1]
        return int(torch.searchsorted(ends, point, right=True))


def last_document(ids: list[int], start_id: int | None) -> list[int]:
    """Return the ids from the last `start_id` on; all of them without one."""
    return ids[max((i for i, each in enumerate(ids) if each == start_id), default=0) :]


def generate(
    model: Gemma3Model,
    prompt_ids: list[int],
    max_new_tokens: int,
    *,
    generator: torch.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    eot_id: int | None = None,
    use_cache: bool = True,
) -> Iterator[int]:
    """Generate the ids after `prompt_ids`, one at a time, up to and including `eot_id`.

    `generator` is on the CPU. A model with a `document_start_id` sees the ids from the last one on; an id that it
    draws begins a new document. Raise ValueError for a wrong setting, an empty prompt, or more than max_seq_len ids.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p)
    if not prompt_ids:
        raise ValueError("prompt_ids is empty; it must hold at least one id: begin a text with the end-of-text id")
    total, limit = len(prompt_ids) + max_new_tokens, model.config.max_seq_len
    require(total <= limit, "prompt plus max_new_tokens", total, f"at most max_seq_len ({limit})")
    # A generator of its own, so that the errors above are raised now and not at the first id.
    return _generate(model, prompt_ids, max_new_tokens, generator, sampling, eot_id, use_cache)


@torch.inference_mode()
def _generate(
    model: Gemma3Model,
    prompt_ids: list[int],
    max_new_tokens: int,
    generator: torch.Generator,
    sampling: Sampling,
    eot_id: int | None,
    use_cache: bool,
) -> Iterator[int]:
    """Generate as `generate`, which checks the arguments."""
    ids = last_document(prompt_ids, model.document_start_id)
    cache = KVCache() if use_cache else None
    for _ in range(max_new_tokens):
        # Compute the ids that the cache does not hold yet, and draw the next one.
        new_ids = ids[cache.num_tokens :] if cache else ids
        h = model.hidden(torch.tensor([new_ids], device=model.device), cache)[:, -1]  # (1, C)
        drawn = sampling.draw(model.head(h)[0].float(), generator, model.numerics)
        yield drawn
        if drawn == eot_id:
            return
        ids.append(drawn)
        if drawn == model.document_start_id:
            ids = [drawn]
            cache = KVCache() if use_cache else None
