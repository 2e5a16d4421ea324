"""Several processes that train one model, its ranks: how they find each other, share, agree and end.

Each rank takes its rows of every batch, and the gradients are averaged, so that all hold the same weights;
the first rank alone holds locks, prints and writes. With one process there is no group and every method
gives back what it is given. Nothing in training draws random numbers (there is no dropout, a batch is a
function of seed and step), so no rank needs a generator of its own.
"""

import contextlib
import dataclasses
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lm.core.errors import DivergedError, EnvironmentFailure, Interrupted

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# Of a job step, which srun starts: a batch script has SLURM_PROCID and SLURM_NTASKS too, and is no rank.
SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")
LAUNCHER = "train-stage"  # the name by which a rank knows that lm.launcher began it
BUCKET_NUMBERS = 1 << 23  # gradients that are averaged at once
LAST_WORD_S = 2.0  # that the first rank has to say why all end
GRACE_S = 5.0  # in which a launcher ends the ranks that only lost another


def place() -> tuple[int, int, int, int] | None:
    """Rank, number of ranks, the same two on this host; None where neither torchrun nor srun began this process."""
    for names in (TORCHRUN, SRUN):
        if all(name in os.environ for name in names):
            return tuple(int(re.match(r"\d+", os.environ[name])[0]) for name in names)  # "8(x2)": 8 on each of 2 hosts
    return None


@dataclasses.dataclass(frozen=True)
class Team:
    """This process among all of the run: `rank` of `count`, `local_rank` of `local_count` on this host."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1
    sharded: bool = False  # each rank keeps its part of the weights alone (FSDP2)
    timeout_s: float = 0.0
    store: dist.Store | None = None

    @property
    def first(self) -> bool:
        """Whether this is the rank that holds locks, prints and writes."""
        return self.rank == 0

    @property
    def shards(self) -> int:
        """In how many parts the weights are."""
        return self.count if self.sharded else 1

    @property
    def launched(self) -> bool:
        """Whether lm.launcher began it, which relays signals and ends it by SIGTERM once another rank has failed."""
        return self.count > 1 and os.environ.get("TORCHELASTIC_RUN_ID") == LAUNCHER

    def await_first(self) -> bool:
        """Wait, however long it waits for a lock, until the first rank begins (True) or has nothing to train."""
        self.store.wait(["first"], timedelta(days=365))
        return self.store.get("first") == b"begins"

    def begin(self, device: torch.device) -> None:
        """Make the group: from here on all ranks take the same turns."""
        if self.count == 1:
            return
        if self.first:
            self.store.set("first", "begins")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        timeout = timedelta(seconds=self.timeout_s)
        dist.init_process_group(backend, store=self.store, rank=self.rank, world_size=self.count, timeout=timeout)

    def leave(self) -> None:
        """At the end of a run; the first rank, which may keep the store where all meet, leaves last."""
        if not self.first:
            self.store.set(f"left {self.rank}", "")
        else:
            if not dist.is_initialized():
                self.store.set("first", "has nothing to train")
            self.store.wait([f"left {rank}" for rank in range(1, self.count)], timedelta(seconds=self.timeout_s))
        if dist.is_initialized():
            dist.destroy_process_group()

    def highest(self, *values: int) -> tuple[int, ...]:
        """The highest of each value over all ranks: what one wants all do, at the same step."""
        if self.count == 1:
            return values
        agreed = torch.tensor(values)
        dist.all_reduce(agreed, dist.ReduceOp.MAX)
        return tuple(agreed.tolist())

    def average(self, loss: float, parameters: Iterable[Tensor]) -> float:
        """Replace every gradient by its mean over the ranks, of equal shares of a batch; return the mean loss."""
        if self.count == 1:
            return loss
        if not self.sharded:  # else the backward pass has done it
            self._average_gradients([p.grad for p in parameters if p.grad is not None])
        total = torch.tensor(loss, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / self.count

    def _average_gradients(self, grads: list[Tensor]) -> None:
        # DistributedDataParallel would follow calls of `forward`; this model is trained by its `loss`. The traffic
        # is the same; what is given up is that it overlaps with the last backward pass.
        while grads:
            size = np.cumsum([grad.numel() for grad in grads])
            end = max(1, int(np.searchsorted(size, BUCKET_NUMBERS, side="right")))
            bucket, grads = grads[:end], grads[end:]
            flat = torch.cat([grad.flatten() for grad in bucket])
            dist.all_reduce(flat)
            flat /= self.count
            for grad, mean in zip(bucket, flat.split([grad.numel() for grad in bucket]), strict=True):
                grad.copy_(mean.view_as(grad))

    def join_scores(self, losses: np.ndarray) -> np.ndarray:
        """Put together the losses (N,) float32 that the ranks scored, each NaN where it did not."""
        if self.count == 1:
            return losses
        joined = torch.from_numpy(np.where(np.isnan(losses), -np.inf, losses))
        dist.all_reduce(joined, dist.ReduceOp.MAX)
        return joined.masked_fill_(joined.isneginf(), torch.nan).numpy()

    def place_model(self, model: nn.Module, device: torch.device) -> None:
        """Move the model to the device; where weights are sharded, this rank's part of each alone, block by block."""
        if not self.sharded:
            model.to(device)
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(device.type, (self.count,))
        for module in (*model.layers, model):
            fully_shard(module, mesh=mesh)
        for name in ("loss", "token_losses"):
            register_fsdp_forward_method(model, name)

    def whole(self, value):
        """`value` with every sharded tensor in it, in dicts and lists, whole on the first rank's CPU, empty elsewhere.

        All ranks call it; one tensor at a time is whole on their devices.
        """
        if not self.sharded:
            return value
        if isinstance(value, dict):
            return {key: self.whole(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.whole(item) for item in value]
        if not hasattr(value, "full_tensor"):
            return value
        full = value.full_tensor()
        return full.cpu() if self.first else torch.empty(0)

    def split(self, weights: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """This rank's part of whole weights; the inverse of `whole` for a model's state."""
        if not self.sharded:
            return weights
        own = model.state_dict()
        return {name: _shard(value, own[name]) for name, value in weights.items()}

    def split_state(self, state: dict, optimizer: torch.optim.Optimizer) -> dict:
        """This rank's part of an optimizer's whole state."""
        if not self.sharded:
            return state
        own = [p for group in optimizer.param_groups for p in group["params"]]
        parts = {i: {name: _shard(v, own[i]) for name, v in values.items()} for i, values in state["state"].items()}
        return {**state, "state": parts}


ALONE = Team()


def _shard(value: Tensor, like: Tensor) -> Tensor:
    """The part of `value` that the sharded tensor `like` of its shape has here; another shape stays as it is."""
    if value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every rank has the whole tensor: nothing is sent.
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def full(tensor: Tensor) -> Tensor:
    """The number that a sharded tensor stands for on all ranks, or the tensor itself; all ranks call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@contextlib.contextmanager
def join(shard: bool, timeout_s: float) -> Iterator[Team]:
    """The team that this process was begun for, met at MASTER_ADDR:MASTER_PORT, to the run's end; ALONE if none.

    Raises EnvironmentFailure if the ranks do not meet, or if one is lost or silent for `timeout_s`. What all
    ranks know, a stop or a divergence, is said by the first; the others end with its exit code.
    """
    where = place()
    if where is None or where[1] == 1:
        yield ALONE
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise EnvironmentFailure(
            f"{missing[0]} is not set: rank {where[0]} of {where[1]} does not know where the first one listens; "
            'export it as in README, "Several GPUs, several hosts"'
        )
    rank, count = where[:2]
    try:
        meeting = dist.rendezvous(f"env://?rank={rank}&world_size={count}", timeout=timedelta(seconds=timeout_s))
        team = Team(*where, shard, timeout_s, next(meeting)[0])
        yield team
        team.leave()
    except (Interrupted, DivergedError) as error:
        if rank == 0:
            raise
        time.sleep(LAST_WORD_S)  # a launcher ends all as soon as one has left: the first speaks before that
        sys.exit(error.exit_code)
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        reason = " ".join(str(error).split())
        time.sleep(GRACE_S + rank)  # whoever failed has said so, and this rank is ended meanwhile; if not, one speaks
        raise EnvironmentFailure(
            f"rank {rank} of {count} lost another, or had no answer within train.timeout_s {timeout_s:g} of "
            f"runtime.yaml ({reason[:120]}); `dvc repro` continues from the last saved state"
        ) from None
