"""What the fast path becomes on GPUs that are not here: compiled and counted, not measured (results/compiled.json).

In training and in validation, without documents and with them: each compiled graph's launches and the bytes that its
own kernels move, and the most registers, spilled bytes and shared memory that a kernel takes. It needs g++, and takes
ten minutes.
"""

import itertools
import json
import subprocess
import sys

from absent_gpu.device import CARDS
from harness import RESULTS, ROOT, versions
from lm.core.files import write_json

MODELS = ("small", "gpt2_size", "gemma3_270m")


def main() -> None:
    """Compile one after the other and write the file, which stays if a later one fails."""
    cases = []
    for preset, capability in itertools.product(MODELS, CARDS):
        command = [sys.executable, "-m", "absent_gpu.model", str(capability), preset]
        printed = subprocess.check_output(command, cwd=ROOT, text=True)
        for line in printed.splitlines():
            shared_bytes = CARDS[capability].shared_kib * 1024
            case = {"model": preset, "capability": capability, "shared_bytes": shared_bytes}
            cases.append(case | json.loads(line))
        found = {"benchmark": "compiled", "versions": versions("torch", "triton"), "cases": cases}
        write_json(RESULTS / "compiled.json", found)
        print(f"{preset} for {capability}: compiled", flush=True)


if __name__ == "__main__":
    main()
