"""Sampling: a model and the ids of a prompt in, the ids that continue it out, one by one.

Legend as in lm.model: B batch, K key/value heads, T new tokens, S tokens with the past, D head_dim.
"""

import dataclasses
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.model.gemma3 import Gemma3Model


class KVCache:
    """The past's keys and values, two (B, K, S, D) a layer; sliding layers keep what their window reaches."""

    def __init__(self):
        self.num_tokens = 0
        self.past: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, k: Tensor, v: Tensor, window: int) -> tuple[Tensor, Tensor]:
        """Append a layer's (B, K, T, D), return all that these tokens may see, keep what the next may."""
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
    """Set unlikely entries of (V,) to -inf, one filter after the other; None leaves one out.

    top_k keeps the k largest and what equals the k-th; top_p the fewest likeliest entries whose
    probability reaches top_p (Holtzman et al., arXiv 1904.09751); min_p those at least min_p times as
    likely as the likeliest (Nguyen et al., arXiv 2407.01082). The likeliest always stays.
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
    """How an id is drawn: temperature 0 takes the likeliest, above it the filters apply; None is off."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self):
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}, needed: 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}, needed: 1 or more")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name} is {value}, needed: above 0, at most 1")

    def draw(self, logits: Tensor, generator: torch.Generator) -> int:
        """Draw one id from logits (V,) with a generator on the same device."""
        if self.temperature == 0:
            return int(logits.argmax())
        kept = filter_logits(logits / self.temperature, self.top_k, self.top_p, self.min_p)
        return int(torch.multinomial(kept.softmax(0), 1, generator=generator))


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
    """Yield the ids that follow `prompt_ids`, each as soon as it is drawn; `eot_id` is the last.

    `generator` lives on model.device; the other settings are those of `Sampling`. With the cache an id
    costs the work of one token, without it that of the whole text. Raises ValueError for a setting out
    of range, an empty prompt, or a text that would outgrow the model's max_seq_len.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p)
    if not prompt_ids:
        raise ValueError("prompt_ids is empty, needed: at least one id; an end-of-text id begins a text")
    total, limit = len(prompt_ids) + max_new_tokens, model.config.max_seq_len
    if total > limit:
        raise ValueError(f"prompt and new tokens are {total}, needed: at most max_seq_len ({limit})")
    return _stream(model, list(prompt_ids), max_new_tokens, sampling, generator, eot_id, use_cache)


@torch.inference_mode()
def _stream(
    model: Gemma3Model,
    ids: list[int],
    max_new_tokens: int,
    sampling: Sampling,
    generator: torch.Generator,
    eot_id: int | None,
    use_cache: bool,
) -> Iterator[int]:
    """The loop of `generate`: `ids` grows by what is yielded."""
    cache = KVCache() if use_cache else None
    for _ in range(max_new_tokens):
        unseen = ids[cache.num_tokens :] if use_cache else ids
        h = model.hidden(torch.tensor([unseen], device=model.device), cache)[0, -1]  # (C,)
        logits = F.linear(h, model.embed_tokens.weight).float()  # (V,)
        ids.append(sampling.draw(logits, generator))
        yield ids[-1]
        if ids[-1] == eot_id:
            return
