"""What NumPy reads when it is loaded: import this module before it.

The settings make it run the same code on every x86-64 processor with AVX2. A person's own settings are kept.
"""

import os

SETTINGS = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",  # log, exp, … with AVX-512 have other bits
    "OPENBLAS_CORETYPE": "Haswell",  # products
}

for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)
