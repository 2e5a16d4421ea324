"""Exact numerics: one definition of every sum, with the same bits on processors and on GPUs.

order.py      the definition: every constant that decides a bit, and each operation as a plain loop
functions.py  what a model and an optimizer call: autograd and shapes; `kernels_of` chooses by the device
cpu/          loops that numba compiles
gpu/          Triton kernels
threads.py    the number of threads that compute
"""
