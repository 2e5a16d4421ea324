"""What NumPy and Matplotlib read when they are loaded: import this module before them.

The settings make NumPy run the same code on every x86-64 processor with AVX2. A person's own settings are kept.
Pictures are files, so no backend for a screen is loaded: the one that Jupyter names in its terminals exists in its
kernels alone.
"""

import os

SETTINGS = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",  # log, exp, … with AVX-512 have other bits
    "OPENBLAS_CORETYPE": "Haswell",  # products
}

for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)
os.environ["MPLBACKEND"] = "agg"
