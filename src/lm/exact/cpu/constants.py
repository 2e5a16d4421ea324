"""Float32 constants for loops: a Python number would make a sum float64."""

import numpy as np

ZERO = np.float32(0)
ONE = np.float32(1)
