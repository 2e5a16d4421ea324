"""The loss and the gradient norm of the first step of each model of speed/gpu.py, in float32 on a CPU.

    PYTHONPATH=src:benchmarks python benchmarks/speed/first_steps.py    # twenty minutes with two cores

`make bench-gpu` compares the first steps of a GPU with them. Writes results/first_steps.json.
"""

import dataclasses

import lm.core.environment  # noqa: F401 - before torch

import torch
from gpu import FIRST_STEPS, NUM_STEPS, QUICK_STEPS
from gpu_models import CASES, FLOAT32, QUICK_CASES, Case, start_run

from lm.train import step
from result import versions, write_result


def first_step(case: Case, num_steps: int) -> dict[str, float]:
    """Return the loss in nats per token, and the gradient norm before clipping."""
    run = start_run(case, num_steps, torch.device("cpu"), FLOAT32)
    params = dataclasses.replace(run.params, micro_batch_tokens=2 * case.seq_len)  # fits into 16 GB of memory
    loss, norm = step.compute_gradients(run.state, next(run.batches), params, run.dtype)
    return {"loss": loss, "norm": norm}


def main() -> None:
    """Compute the first steps, and write them."""
    steps = {"quick": first_step(QUICK_CASES[0], QUICK_STEPS)}
    for case in CASES:
        steps[case.preset] = first_step(case, NUM_STEPS)
        print(case.preset, steps[case.preset], flush=True)
    write_result(FIRST_STEPS, versions=versions("torch", "numpy"), steps=steps)


if __name__ == "__main__":
    main()
