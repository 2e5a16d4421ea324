"""Exact numerics on a GPU: Triton kernels with the order of additions of lm.exact.order.

The functions have the names and parameters of lm.exact.cpu, and give the same bits. A program (a block of
threads) computes some results from their first to their last term, so nothing is added by atomics or in an order that
the number of threads could change. Tiles, warps and stages decide how many results are computed at once.

Rules for kernels:

- Each operation is rounded as written. `launch` forbids the compiler to join a multiplication and an addition.
- Divide by `div_rn`, take roots by `sqrt_rn`, join by `fma`. `/`, `tl.exp` and `tl.sum` of float32 are approximations,
  or have an order that depends on the layout.
- `tl.dot(x, y, chain, input_precision="ieee")` adds the terms to the chain by fma, one after the other.
- Indices that can reach 2**31 are int64.

The bits of a NaN differ from those on a CPU: a GPU has a single NaN.

kernels.py          the functions that lm.exact.functions calls
constants.py        constants of lm.exact.order for kernels, and other numbers
launch.py           run a kernel on a grid of programs
elementary.py       exponential, logarithm, sigmoid
reductions.py       sums and the largest number of rows
tiles.py            the tiles of a product, and which of them is fastest
products.py         products of matrices
norm.py             RMS norm
gate.py             the gate of the MLP
softmax.py          the softmax of the scores of attention
attention.py        attention by products of matrices
short_attention.py  attention to short windows, position by position
loss.py             cross-entropy
gradients.py        sums of squares, and gradients as integers
optimizers.py       the updates of AdamW and of Muon
embeddings.py       sums of rows that ids choose

Numbers such as NUMBERS and SPEEDS decide how fast the kernels are, and no bit.

See lm.model.gemma3 for the legend. N rows, and products of (M, K) and (K, N). BM, BN and BK are the sizes of a tile.
"""
