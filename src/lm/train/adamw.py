"""AdamW, the optimizer of all parameters or of those that Muon leaves."""

import math

import torch
from torch import Tensor

from lm.model import exact
from lm.model.config import Numerics


class AdamW(torch.optim.AdamW):
    """Decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101); torch's own, or exact."""

    def __init__(self, groups: list[dict], betas: tuple[float, float], numerics: Numerics = "fast"):
        super().__init__(groups, lr=0.0, betas=betas, fused=True)
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
        """Update a parameter and its moments; each operation is a call of its own, for the same bits everywhere."""
        state, (beta1, beta2) = self.state[p], group["betas"]
        if not state:
            zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            state |= {"step": torch.zeros(())} | zeros
        state["step"] += 1

        # The moments begin at 0. These factors correct their bias.
        step = int(state["step"])
        size = group["lr"] / (1 - beta1**step)
        root = math.sqrt(1 - beta2**step)

        p.mul_(1 - group["lr"] * group["weight_decay"])
        for x, g, mean, square in exact.chunks(p, grad, state["exp_avg"], state["exp_avg_sq"]):
            mean.mul_(beta1).add_(g * (1 - beta1))
            square.mul_(beta2).add_((g * g).mul_(1 - beta2))
            x.sub_((mean * size).div_(exact.sqrt(square).div_(root).add_(group["eps"])))
