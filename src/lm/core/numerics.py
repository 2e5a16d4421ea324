"""The two arithmetics of a model: "exact" (lm.exact) and "fast" (torch's own)."""

from typing import Literal

Numerics = Literal["exact", "fast"]
