"""Numbers of float32 for loops: a number of Python would make a sum float64."""

import numpy as np

ZERO = np.float32(0)
ONE = np.float32(1)
