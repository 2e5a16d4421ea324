"""Compile for an NVIDIA GPU that is not there, with torch's CPU build, Triton and its ptxas.

device.py gives torch a device `cuda` that does nothing, inductor.py counts what torch's compiler makes, and model.py
compiles a model. They use private names of torch; without one of them, MISSING_NAME is the exit status.
"""

MISSING_NAME = 77
