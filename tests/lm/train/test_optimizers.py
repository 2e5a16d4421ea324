"""Each parameter has its optimizer, and each optimizer is its definition."""

import pytest
import torch
from torch import nn

from lm.train.ngram_embeddings import NgramEmbeddings
from lm.train.optimizers import AdamW, Muon, build_optimizers
from lm.train.state import TrainingState
from lm.train.step import update_weights
from support.model_cases import optimizer_params


def draw(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Return normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.matrix = nn.Linear(4, 4, bias=False)
        self.norm = nn.RMSNorm(4)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_each_parameter_is_in_one_group_that_computes_as_the_parameters_say(optimizer):
    """The vectors of n-grams, whose optimizer comes first, have half of the rate."""
    model = Tiny()
    ngrams = NgramEmbeddings({0: b"ab"}, 7, 16)
    params = optimizer_params(optimizer, numerics="fast")
    of_ngrams, *optimizers = build_optimizers(model, params, torch.bfloat16, ngrams)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    update_weights(TrainingState(model, [of_ngrams, *optimizers]), 0.5)

    settings = {}
    num_parameters = 0
    for each in optimizers:
        for group in each.param_groups:
            for parameter in group["params"]:
                settings[id(parameter)] = (group["lr"], group["weight_decay"])
                num_parameters += 1
    assert num_parameters == 3
    assert [group["lr"] for group in of_ngrams.param_groups] == [0.25]
    adamw, *muon = optimizers
    assert all(each.numerics == "fast" for each in (of_ngrams, *optimizers))
    for group in [*of_ngrams.param_groups, *adamw.param_groups]:
        assert group["betas"] == (0.9, 0.95)
    assert len(muon) == (optimizer == "muon")
    for each in muon:
        assert each.dtype == torch.bfloat16
        assert [group["momentum"] for group in each.param_groups] == [0.95]
    assert settings == {
        id(model.embed.weight): (0.5, 0.0),
        id(model.matrix.weight): (0.5, 0.1),
        id(model.norm.weight): (0.5, 0.0),
    }


def orthogonalized(update: torch.Tensor) -> torch.Tensor:
    """Return 5 steps of the quintic Newton-Schulz iteration (Jordan et al. 2024) in float64."""
    is_tall = update.shape[0] > update.shape[1]
    x = update.T if is_tall else update
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        polynomial = -4.7750 * gram + 2.0315 * gram @ gram
        x = 3.4445 * x + polynomial @ x
    return x.T if is_tall else x


MUON_SHAPES = [(64, 64), (64, 64), (32, 64), (96, 64)]
LR = 0.01
WEIGHT_DECAY = 0.1
# 5 iterations of 3 products, each rounded about 3 times, add up like a random walk. The next iteration multiplies an
# error by 3.4445 at most.
ROUNDINGS_OF_MUON = 3.4445 * (5 * 3 * 3) ** 0.5


def muon_by_its_definition(shape: tuple[int, int], gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the matrix after a step with each of the gradients, computed in float64.

    The momentum is Nesterov's: the update is that of the average of gradients, moved on by the gradient once more.
    """
    momentum = 0.95
    weight = draw(shape, 1).double()
    average = torch.zeros(shape, dtype=torch.float64)
    for gradient in gradients:
        new = (1 - momentum) * gradient.double()
        average = momentum * average + new
        update = orthogonalized(momentum * average + new)
        size = 0.2 * max(shape) ** 0.5
        weight = weight * (1 - LR * WEIGHT_DECAY) - LR * size * update
    return weight


def test_muon_is_its_definition():
    """Compare three steps in float32."""
    matrices = [nn.Parameter(draw(shape, 1)) for shape in MUON_SHAPES]
    muon = Muon(matrices, lr=LR, weight_decay=WEIGHT_DECAY, dtype=torch.float32)

    for step in range(3):
        for matrix in matrices:
            matrix.grad = draw(matrix.shape, step)
        muon.step()

    for matrix, shape in zip(matrices, MUON_SHAPES, strict=True):
        wanted = muon_by_its_definition(shape, [draw(shape, step) for step in range(3)])
        change = wanted - draw(shape, 1)
        error_of_updates = ROUNDINGS_OF_MUON * 2.0**-24 * change.norm()
        error_of_weights = 3 * 2 * 2.0**-24 * wanted.norm()  # rounded to float32 twice in each step
        assert (matrix - wanted).norm() <= error_of_updates + error_of_weights


@pytest.mark.parametrize("scale", [1.0, 1e-8], ids=["large gradients", "gradients like eps"])
def test_exact_adamw_agrees_with_torchs_own_in_float64(scale):
    shape = (40, 30)
    ours = nn.Parameter(draw(shape, 0))
    theirs = nn.Parameter(draw(shape, 0).double())
    betas = (0.9, 0.99)
    own_adamw = AdamW([{"params": [ours], "weight_decay": 0.3}], betas, "exact")
    torch_adamw = torch.optim.AdamW([theirs], betas=betas, weight_decay=0.3)

    for step in range(1, 8):
        ours.grad = draw(shape, step) * scale
        theirs.grad = ours.grad.double()
        for optimizer in (own_adamw, torch_adamw):
            optimizer.param_groups[0]["lr"] = 0.1 / step
            optimizer.step()

        difference = (ours - theirs).abs().max()
        assert difference < step * 1e-6, "each step rounds weights of up to 4 and updates of up to 1"
