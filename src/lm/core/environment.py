"""Settings that torch and OpenMP read when they are loaded: import this module before torch.

`ATEN_CPU_CAPABILITY=avx2` makes torch run the same code on every x86-64 processor with AVX2, and `GOMP_SPINCOUNT`
lets an OpenMP thread that waits give its core to other processes. A person's own settings are kept.
"""

import os

SETTINGS = {"ATEN_CPU_CAPABILITY": "avx2", "GOMP_SPINCOUNT": "1000"}

for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)
