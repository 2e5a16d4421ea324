"""Test how processes on one machine divide its GPUs."""

import subprocess
import sys

import torch

from lm.model import device
from lm.model.gpus import take_free_gpu
from support import ROOT

TAKE = "import sys; from pathlib import Path; from lm.model.gpus import take_free_gpu\n"
TAKE += "print(take_free_gpu(sys.argv[2:], Path(sys.argv[1])), flush=True); sys.stdin.read()"


def start(folder, *names: str) -> tuple[subprocess.Popen, int]:
    """Start a process that takes a GPU; return it and the index."""
    command = [sys.executable, "-c", TAKE, str(folder), *names]
    process = subprocess.Popen(command, cwd=ROOT / "src", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def test_each_process_takes_a_gpu_of_its_own_until_it_ends(tmp_path):
    processes, indices = zip(*(start(tmp_path, "a", "b", "c") for _ in range(3)), strict=True)
    assert indices == (0, 1, 2)
    assert take_free_gpu(["a", "b", "c"], tmp_path) == 0  # all are taken
    assert take_free_gpu(["c", "d"], tmp_path) == 1  # another choice of CUDA_VISIBLE_DEVICES
    processes[1].kill()
    processes[1].wait()
    assert take_free_gpu(["a", "b", "c"], tmp_path) == 1
    for process in processes:
        process.kill()
        process.communicate()


def test_a_single_process_uses_the_gpu_that_it_took(monkeypatch):
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(device, "gpu_name", "GPU-{}".format)
    monkeypatch.setattr(device, "take_free_gpu", lambda names: names.index("GPU-1"))
    assert device.pick_device() == torch.device("cuda", 1) and current == [1]
    assert device.pick_device(0) == torch.device("cuda", 0)  # a rank of several has its own
    assert device.pick_device(numerics="exact") == torch.device("cpu") and current == [1]
