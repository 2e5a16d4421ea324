"""AdamW, the optimizer of all parameters or of those that Muon leaves."""

import torch

from lm.model import exact


class AdamW(torch.optim.AdamW):
    """Decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101); on a CPU exact, elsewhere torch's own."""

    def __init__(self, groups: list[dict], betas: tuple[float, float]):
        super().__init__(groups, lr=0.0, betas=betas, fused=True)

    @torch.no_grad()
    def step(self, closure=None):
        """Update every parameter that has a gradient; `closure` is unused, torch passes it."""
        pairs = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not all(exact.is_exact(p, p.dtype) for p, _ in pairs):
            return super().step()
        for p, group in pairs:
            state, (beta1, beta2) = self.state[p], group["betas"]
            if not state:
                zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                state |= {"step": torch.zeros(())} | zeros
            state["step"] += 1
            corrections = [1 - beta ** int(state["step"]) for beta in (beta1, beta2)]
            size, root = group["lr"] / corrections[0], corrections[1] ** 0.5
            p.mul_(1 - group["lr"] * group["weight_decay"])
            for x, g, mean, square in exact.chunks(p, p.grad, state["exp_avg"], state["exp_avg_sq"]):
                mean.mul_(beta1).add_(g * (1 - beta1))
                square.mul_(beta2).add_((g * g).mul_(1 - beta2))
                x.sub_((mean * size).div_(exact.sqrt(square).div_(root).add_(group["eps"])))
