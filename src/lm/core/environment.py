"""Set the environment variables that NumPy and Matplotlib read when they are loaded; import this module first.

They make NumPy run the same code on every x86-64 processor with AVX2. Variables that are already set are kept.
Matplotlib only writes files, so it must not load the backend that Jupyter names in its terminals: that one exists only
in Jupyter's kernels.
"""

import os

SETTINGS = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",  # log, exp, … with AVX-512 have other bits
    "OPENBLAS_CORETYPE": "Haswell",  # products
}

for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)
os.environ["MPLBACKEND"] = "agg"
