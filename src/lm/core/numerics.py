"""The arithmetic of a model, and where it computes."""

from typing import Literal

Numerics = Literal["exact", "fast"]  # lm.exact, or torch's own
DeviceChoice = Literal["auto", "cpu", "cuda"]  # `device` of runtime.yaml
