"""The choices of arithmetic and of device."""

from typing import Literal

Numerics = Literal["exact", "fast"]  # lm.exact, or torch's own
DeviceChoice = Literal["auto", "cpu", "cuda"]  # `device` of runtime.yaml
