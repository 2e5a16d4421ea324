"""What torch and NumPy read when they are loaded: import this module before them.

The settings make both run the same code on every x86-64 processor with AVX2. A person's own settings are kept.
"""

import os

import lm.core.parent  # noqa: F401 - before imports that take seconds

SETTINGS = {
    "ATEN_CPU_CAPABILITY": "avx2",  # torch
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",  # NumPy's log, exp, … with AVX-512 have other bits
    "OPENBLAS_CORETYPE": "Haswell",  # NumPy's products
}

for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)
