"""Other processors for tests: the instructions that every x86-64 processor has, and an emulated processor.

For the latter, name the command of a Python there with the packages of requirements.txt, such as
EMULATED_PYTHON="qemu-aarch64 -L /opt/arm64 /opt/arm64/usr/bin/python3.11". It takes minutes to import torch.
"""

import os
import shlex
import sys

import pytest

GENERIC = {"ATEN_CPU_CAPABILITY": "default", "NUMBA_CPU_NAME": "generic"}
EMULATED = shlex.split(os.environ.get("EMULATED_PYTHON", ""))
NO_EMULATOR = "EMULATED_PYTHON is not set; tests/support/emulation.py says to what"

# The command of Python, and variables of its environment.
OTHER_PROCESSORS = [
    pytest.param([sys.executable], GENERIC, id="other instructions"),
    pytest.param(EMULATED, {}, id="emulated", marks=pytest.mark.skipif(not EMULATED, reason=NO_EMULATOR)),
]
