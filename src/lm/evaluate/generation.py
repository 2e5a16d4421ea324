"""Sample from a model: the ids of a prompt in, the ids that continue it out. See lm.model.gemma3 for the legend."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lm.core.numerics import Numerics
from lm.core.params import require
from lm.exact import functions as exact
from lm.model.gemma3 import Gemma3Model
from lm.model.machine import copy_to

IDS_PER_READ = 16  # ids that a GPU draws before Python reads them
SPARE_TOKENS = 64  # room for later tokens in a cache, at least


class KVCache:
    """Keys and values of the past, (B, K, S, D) per layer; sliding layers keep what their window reaches.

    They are written into tensors with room for later tokens, so that a token costs no copy of the past.
    """

    def __init__(self):
        self.num_tokens = 0
        self._layers: dict[int, LayerCache] = {}

    def extend(self, layer: int, k: Tensor, v: Tensor, window: int) -> tuple[Tensor, Tensor]:
        """Append a layer's k and v (B, K, T, D); return all that these tokens may see; keep all that later ones may."""
        if layer == 0:
            self.num_tokens += k.shape[2]
        if layer not in self._layers:
            self._layers[layer] = LayerCache()
        return self._layers[layer].extend(k, v, window)


class LayerCache:
    """Keys and values of one layer, (2, B, room, K, D); those that are still visible end at `end`."""

    room: Tensor

    def __init__(self):
        self.end = self.num_kept = 0

    def extend(self, k: Tensor, v: Tensor, window: int) -> tuple[Tensor, Tensor]:
        """Append k and v (B, K, T, D); return all that these tokens may see, (B, K, S, D)."""
        B, K, T, D = k.shape
        needed = self.num_kept + T
        first = self.end - self.num_kept

        # Without room, move the kept entries to the beginning of a new tensor with more than twice the room.
        if self.end == 0 or self.end + T > self.room.shape[2]:
            room = k.new_empty(2, B, 2 * needed + SPARE_TOKENS, K, D)
            if self.num_kept > 0:
                room[:, :, : self.num_kept] = self.room[:, :, first : self.end]
            self.room = room
            first = 0

        # Append.
        self.end = first + needed
        new = slice(self.end - T, self.end)
        self.room[0, :, new] = k.transpose(1, 2)
        self.room[1, :, new] = v.transpose(1, 2)
        self.num_kept = min(needed, window - 1)
        seen_k, seen_v = self.room[:, :, first : self.end].transpose(2, 3)
        return seen_k, seen_v


def filter_logits(
    logits: Tensor, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None
) -> Tensor:
    """Set unlikely entries of logits (V,) to -inf, one filter after the other; None switches a filter off.

    top_k keeps the k largest entries and those equal to the k-th; top_p the smallest set of the most likely entries
    whose probability reaches top_p (Holtzman et al., arXiv 1904.09751); min_p the entries at least min_p times as
    likely as the most likely one (Nguyen et al., arXiv 2407.01082). The most likely entry is always kept.
    """
    if top_k is not None and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -math.inf)
    if top_p is not None:
        values, order = logits.sort(descending=True, stable=True)
        p = values.softmax(0)
        likelier = p.cumsum(0) - p  # the probability of all entries before
        is_dropped = torch.zeros_like(logits, dtype=torch.bool).scatter_(0, order, likelier >= top_p)
        logits = logits.masked_fill(is_dropped, -math.inf)
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

    def points(self, count: int, generator: torch.Generator) -> Tensor:
        """Return a random number in [0, 1) for each of `count` draws: (count,) float64, on the CPU as `generator`.

        At temperature 0 all are 0, and the generator does not advance.
        """
        if self.is_greedy:
            return torch.zeros(count, dtype=torch.float64)
        return torch.rand(count, generator=generator, dtype=torch.float64)

    def draw(self, logits: Tensor, point: Tensor, numerics: Numerics = "fast") -> Tensor:
        """Draw an id (1,) int64 from logits (V,), on their device.

        `point` (1,) is one of the numbers of `points` and decides the draw. `numerics` are used for the softmax.
        """
        if self.is_greedy:
            return logits.argmax(0, keepdim=True)
        divisor = torch.full_like(logits, self.temperature)  # a GPU multiplies by the reciprocal of a Python number
        kept = filter_logits(logits / divisor, self.top_k, self.top_p, self.min_p)
        # torch.multinomial computes a logarithm, whose bits depend on the processor. Sums of float64 in a fixed order
        # do not. A GPU adds in another order, so with exact numerics the CPU computes the sums.
        p = exact.softmax(kept).cpu() if numerics == "exact" else kept.softmax(0)
        ends = p.double().cumsum(0)
        drawn = torch.searchsorted(ends, point.to(ends.device) * ends[-1], right=True)
        return drawn.to(logits.device)

    @property
    def is_greedy(self) -> bool:
        """Return True if the temperature is 0, or so small that the division would overflow."""
        return self.temperature < 1e-6


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

    `generator` is on the CPU; where several ids are drawn at a time (`ids_per_read`), it may advance by more than there
    are ids. A model with a `document_start_id` sees the ids from the last one on; an id that it draws begins a new
    document. Raise ValueError for a wrong setting, an empty prompt, or more than max_seq_len ids.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p)
    if not prompt_ids:
        raise ValueError("prompt_ids is empty; it must hold at least one id: begin a text with the end-of-text id")
    total = len(prompt_ids) + max_new_tokens
    limit = model.config.max_seq_len
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
    """Do the work of `generate`, which checks the arguments."""
    new_ids = torch.tensor([last_document(prompt_ids, model.document_start_id)], device=model.device)
    cache = KVCache() if use_cache else None
    with packed_weights(model):
        for begin in range(0, max_new_tokens, ids_per_read(model)):
            count = min(ids_per_read(model), max_new_tokens - begin)
            drawn: list[Tensor] = []
            for point in copy_to(sampling.points(count, generator), model.device).split(1):
                # Compute the ids that the cache does not hold yet, and draw the next one.
                h = model.hidden(new_ids, cache)[:, -1]  # (1, C)
                drawn.append(sampling.draw(model.head(h)[0].float(), point, model.numerics))
                new_ids = drawn[-1][None] if use_cache else torch.cat([new_ids, drawn[-1][None]], 1)

            # Read the ids.
            for drawn_id in torch.cat(drawn).tolist():
                yield drawn_id
                if drawn_id == eot_id:
                    return
                if drawn_id == model.document_start_id:
                    new_ids = drawn[-1][None]
                    cache = KVCache() if use_cache else None


def ids_per_read(model: Gemma3Model) -> int:
    """Return how many ids are drawn before Python reads them: several on a GPU, which waits each time.

    Exact numerics wait in each draw. A model that keeps to its document needs a new cache after an id that ends one.
    """
    is_free = model.device.type != "cpu" and model.numerics == "fast" and model.document_start_id is None
    return IDS_PER_READ if is_free else 1


@contextlib.contextmanager
def packed_weights(model: Gemma3Model) -> Iterator[None]:
    """Keep a model's matrices packed in exact numerics: packing one takes longer than multiplying it by a token."""
    if model.numerics != "exact":
        yield
        return
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    with exact.keep_packed(matrices):
        yield
