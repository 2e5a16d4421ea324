"""Exact numerics on a CPU: loops that numba compiles, and the threads that share them.

The order of additions is that of lm.exact.order. lm.exact.gpu has a file of the same name for each topic.

kernels.py          the functions that lm.exact.functions calls
compiled.py         compile loops with numba, and keep the compiled code
constants.py        0 and 1 of float32
registers.py        a type for numba: numbers that stay in vector registers
parts.py            threads that compute the parts of a loop
elementary.py       exponential, logarithm, sigmoid
reductions.py       sums and the largest number of a row
products.py         products of matrices
norm.py             RMS norm
gate.py             the gate of the MLP
softmax.py          the softmax of a row
attention.py        attention by products of matrices
short_attention.py  attention to short windows, token by token
loss.py             cross-entropy
gradients.py        sums of squares, and gradients as integers
optimizers.py       the updates of AdamW and of Muon
embeddings.py       sums of rows that ids choose

Numbers such as BAND and PART_WORK decide how fast the loops are, and no bit. Those that decide bits are in
lm.exact.order.

See lm.model.gemma3 for the legend. N rows, and products of (M, K) and (K, N).
"""
