"""The fast path for NVIDIA GPUs, compiled without one: benchmarks/absent_gpu says how, and what a count is.

Counts are at most those of benchmarks/results/compiled.json. If a change lowers them, or another version of torch
raises them, `python benchmarks/run.py compiled` makes that file again.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

from support import ROOT

MISSING_NAME = 77  # benchmarks/absent_gpu: torch has no name that must be replaced
COMMITTED = json.loads((ROOT / "benchmarks" / "results" / "compiled.json").read_text())["cases"]
CASES = sorted({(case["model"], case["capability"]) for case in COMMITTED})
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("g++"), reason="torch gets a device `cuda` by a library that g++ compiles"),
]


def cases_of(model: str, capability: int) -> list[dict]:
    return [case for case in COMMITTED if (case["model"], case["capability"]) == (model, capability)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}, {case[1] / 10}")
def found_and_committed(request) -> list[tuple[dict, dict]]:
    model, capability = request.param
    folders = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])
    command = [sys.executable, "-m", "absent_gpu.model", str(capability), model]
    environment = os.environ | {"PYTHONPATH": folders}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode == MISSING_NAME:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return list(zip(found, cases_of(model, capability), strict=True))


def test_every_kernel_fits_its_card(found_and_committed):
    for found, committed in found_and_committed:
        for kernel in found["most"].values():
            assert kernel["shared_bytes"] <= committed["shared_bytes"]
            assert kernel["registers"] <= 255


def test_a_block_is_one_graph_and_the_loss_another(found_and_committed):
    """Of each kind of blocks, and of the last norm, forward and backward; the compiled softmax has its gradient."""
    for found, _ in found_and_committed:
        kinds = [graph["graph"] for graph in found["graphs"]]
        num_blocks_and_norm = 2 if found["documents"] else 3
        if found["compiled"] == "training":
            assert sorted(kinds[:-1]) == sorted(["forward", "backward"] * num_blocks_and_norm)
            assert kinds[-1] == "inference"
            assert found["graphs"][-1]["kernels"] <= 4, "for each chunk of the loss"
        else:
            assert kinds == ["inference"] * num_blocks_and_norm


def test_counts_are_at_most_the_committed_ones(found_and_committed):
    for found, committed in found_and_committed:
        assert found["documents"] == committed["documents"]
        assert found["compiled"] == committed["compiled"]
        for graph, wanted in zip(found["graphs"], committed["graphs"], strict=True):
            assert graph["graph"] == wanted["graph"]
            for count in ("kernels", "library_calls", "bytes"):
                assert graph[count] <= wanted[count], (count, graph, wanted)
        assert found["most"].keys() == committed["most"].keys()
        for kind, wanted in committed["most"].items():
            for count in ("spilled_bytes", "shared_bytes"):
                assert found["most"][kind][count] <= wanted[count], (kind, count)
