"""Optimizers: AdamW for every parameter, or Muon for the matrices and AdamW for the rest."""

# pyright: reportPrivateImportUsage=false
# torch exports no public names for operations on a list of tensors, which are a few kernels on a GPU: torch._foreach_*.

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lm.core.numerics import Numerics
from lm.exact import functions as exact
from lm.exact.order import AdamWScalars, power
from lm.train.config import TrainParams
from lm.train.ngram_embeddings import NgramEmbeddings

# The quintic iteration of Jordan et al. (2024), "Muon": kellerjordan.github.io/posts/muon
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
NGRAM_LR_FACTOR = 0.5  # of the scheduled rate: with 1 the loss of seeds spreads three times as far (benchmarks/LOG.md)


class AdamW(torch.optim.AdamW):
    """Decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101); torch's own, or exact."""

    def __init__(self, groups: list[dict], betas: tuple[float, float], numerics: Numerics = "fast"):
        super().__init__(groups, lr=0.0, betas=betas, fused=numerics == "fast")
        self.numerics = numerics

    @torch.no_grad()
    def step(self, closure=None):
        """Update every parameter that has a gradient; `closure` is unused, torch passes it."""
        if self.numerics == "fast":
            return super().step()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update_exactly(p, p.grad, group)

    def _update_exactly(self, p: Tensor, grad: Tensor, group: dict) -> None:
        """Update a parameter and its moments."""
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(p)
            state["exp_avg_sq"] = torch.zeros_like(p)
        state["step"] += 1

        # The moments begin at 0. These factors correct their bias.
        beta1, beta2 = group["betas"]
        step = int(state["step"])
        size = group["lr"] / (1 - power(beta1, step))
        root = math.sqrt(1 - power(beta2, step))

        decay = 1 - group["lr"] * group["weight_decay"]
        moments = (state["exp_avg"], state["exp_avg_sq"])
        scalars = AdamWScalars(beta1, beta2, decay, size, root, group["eps"])
        exact.update_adamw(p, grad, moments, scalars)


class NgramAdamW(AdamW):
    """Update P by AdamW and add the change to the embedding E (V, C); it needs E's gradient, so it steps first."""

    def __init__(
        self,
        embedding: nn.Parameter,
        ngrams: NgramEmbeddings,
        betas: tuple,
        numerics: Numerics = "fast",
    ):
        self.embedding = embedding
        self.ngrams = ngrams.to(embedding.device)
        num_buckets = len(ngrams.token_starts)
        width = embedding.shape[1]
        self.changes = torch.zeros(num_buckets, width, device=embedding.device, requires_grad=True)
        group = {"params": [self.changes], "weight_decay": 0.0, "lr_factor": NGRAM_LR_FACTOR}
        super().__init__([group], betas, numerics)

    @torch.no_grad()
    def step(self, closure=None):
        """Update the embedding; `closure` is unused, torch passes it."""
        gradient = self.embedding.grad
        assert gradient is not None

        # Update P. Without decay AdamW does not read its parameter, only adds to it: from zero, it gives the change.
        self.changes.grad = self.ngrams.sum_tokens(gradient)
        self.changes.zero_()
        super().step()

        # Add the change to the embedding.
        self.embedding.add_(self.ngrams.sum_buckets(self.changes))


def orthogonalize(updates: Tensor, dtype: torch.dtype, numerics: Numerics = "fast") -> Tensor:
    """Return matrices (N, R, C), R ≤ C, with singular values brought near 1 by Newton-Schulz iteration in `dtype`."""
    if numerics == "exact":
        return exact.orthogonalize(updates, NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS)
    a, b, c = NEWTON_SCHULZ
    norms = updates.norm(dim=(-2, -1))
    x = (updates / (norms + 1e-7)[:, None, None]).to(dtype)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT  # (N, R, R)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x


def newton_schulz_flops(shape: Sequence[int]) -> int:
    """Return the FLOP of `orthogonalize` on one n x m matrix, n ≤ m: 4 n² m + 2 n³ a step (Jordan et al. 2024)."""
    n = min(shape)
    m = max(shape)
    return NEWTON_SCHULZ_STEPS * (4 * n * n * m + 2 * n**3)


class Muon(torch.optim.Optimizer):
    """Update weight matrices by their orthogonalized momentum (Jordan et al. 2024).

    All matrices of one shape are one batch of products, which takes a third of torch.optim.Muon's time for many small
    ones and differs by rounding only. Updates have AdamW's size, 0.2 sqrt(max(rows, columns)) (Liu et al. 2025, arXiv
    2502.16982), so that one learning rate serves both.
    """

    def __init__(
        self,
        params,
        lr: float,
        weight_decay: float,
        dtype: torch.dtype,
        momentum: float = 0.95,
        numerics: Numerics = "fast",
    ):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.dtype = dtype
        self.numerics: Numerics = numerics

    @torch.no_grad()
    def step(self, closure=None):
        """Update every parameter that has a gradient; `closure` is unused, torch passes it."""
        for group in self.param_groups:
            matrices = [p for p in group["params"] if p.grad is not None]
            updates = self._nesterov(matrices, group["momentum"])

            # A matrix and its transpose have one shape.
            pairs_by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
            for p, update in zip(matrices, updates, strict=True):
                shape = (min(p.shape), max(p.shape))
                pairs_by_shape.setdefault(shape, []).append((p, update))
            for shape, pairs in pairs_by_shape.items():
                self._update_batch(shape, pairs, group)

    def _nesterov(self, matrices: list[Tensor], momentum: float) -> list[Tensor]:
        """Update the momentum of each matrix with its gradient; return the gradients averaged with it (Nesterov)."""
        if not matrices:
            return []
        for p in matrices:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        averages = [self.state[p]["momentum"] for p in matrices]

        # Each operation is a call of its own, and so has the same bits everywhere.
        gradients = torch._foreach_mul([p.grad for p in matrices if p.grad is not None], 1 - momentum)
        torch._foreach_mul_(averages, momentum)
        torch._foreach_add_(averages, gradients)
        updates = torch._foreach_mul(averages, momentum)
        torch._foreach_add_(updates, gradients)
        return list(updates)

    def _update_batch(self, shape: tuple[int, int], pairs: list[tuple[Tensor, Tensor]], group: dict) -> None:
        """Decay matrices of one shape (R, C), some of them transposed, and subtract their orthogonalized updates."""
        wide = [(p, update) for p, update in pairs if p.shape == shape]
        tall = [(p, update) for p, update in pairs if p.shape != shape]

        # The tall matrices are transposed together, so that a GPU takes few kernels.
        batch = []
        if wide:
            batch.append(torch.stack([update for _, update in wide]))
        if tall:
            batch.append(torch.stack([update for _, update in tall]).mT)
        size = group["lr"] * 0.2 * math.sqrt(max(shape))
        changes = orthogonalize(torch.cat(batch), self.dtype, self.numerics).float() * size
        changes_as_stored = [*changes[: len(wide)], *changes[len(wide) :].mT.contiguous()]

        matrices = [p for p, _ in wide + tall]
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_sub_(matrices, changes_as_stored)


def build_optimizers(
    model: nn.Module,
    params: TrainParams,
    dtype: torch.dtype,
    ngrams: NgramEmbeddings | None = None,
) -> list[torch.optim.Optimizer]:
    """Return AdamW for all parameters, or Muon for the matrices inside the blocks and AdamW for the rest.

    They compute in `params.numerics`, Muon its products in `dtype`. Weight decay applies to matrices except the
    embedding. Each group's `lr_factor` multiplies the scheduled learning rate. With `ngrams` an optimizer comes first
    that lets tokens of similar spelling learn from each other.
    """
    named = list(model.named_parameters())
    embedding = [p for name, p in named if "embed" in name]
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    vectors = [p for _, p in named if p.ndim < 2]
    matrix_group = {"params": matrices, "weight_decay": params.weight_decay, "lr_factor": 1.0}
    other_group = {"params": [*embedding, *vectors], "weight_decay": 0.0, "lr_factor": 1.0}

    betas = (params.beta1, params.beta2)
    numerics = params.numerics
    optimizers: list[torch.optim.Optimizer] = []
    if ngrams is not None:
        optimizers.append(NgramAdamW(embedding[0], ngrams, betas, numerics))
    if params.optimizer == "adamw":
        optimizers.append(AdamW([other_group, matrix_group], betas, numerics))
    else:
        optimizers.append(AdamW([other_group], betas, numerics))
        optimizers.append(
            Muon([matrix_group], lr=0.0, weight_decay=params.weight_decay, dtype=dtype, numerics=numerics)
        )
    return optimizers
