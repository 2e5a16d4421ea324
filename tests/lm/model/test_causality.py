"""A model whose predictions depend on later tokens is found; no other model is."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lm.core.errors import IntegrityError
from lm.model.causality import check_causality, check_logits
from lm.tokens.tokenfile import TokenFile
from support.model_cases import build

EOT = 99
SEQ_LEN = 40
WINDOW = 13  # of the sliding layers


def stream(count: int = 200) -> TokenFile:
    """Return a file of documents of 30 tokens."""
    ids = np.random.default_rng(1).integers(0, EOT, count).astype(np.uint16)
    ids[29::30] = EOT
    return TokenFile(Path("validation.bin"), ids, {"tokenizer": {"eot_id": EOT}})


def check(model, batch_size: int = 4, dtype: torch.dtype = torch.float32, tokens: TokenFile | None = None) -> None:
    check_causality(model, tokens or stream(), SEQ_LEN, batch_size, dtype)


def leaky(leak, numerics="fast"):
    """Return a model in which `leak` changes what the first layer is given, (B, T, C)."""
    model = build(100, numerics=numerics, sliding_window=WINDOW)
    model.layers[0].register_forward_pre_hook(lambda layer, inputs: (leak(inputs[0].clone()), *inputs[1:]))
    return model


def see_at(position: int, later: int):
    """Return a leak of the token at `later` to one position."""

    def leak(x):
        x[:, position] += x[:, later]
        return x

    return leak


def pool(size: int):
    """Return a leak of the mean of each block of positions to all of them."""

    def leak(x):
        blocks = x.unflatten(1, (-1, size))
        return (blocks + blocks.mean(2, keepdim=True)).flatten(1, 2)

    return leak


@pytest.mark.parametrize("document_start_id", [None, EOT])
@pytest.mark.parametrize(
    ("numerics", "dtype"), [("exact", torch.float32), ("fast", torch.float32), ("fast", torch.bfloat16)]
)
def test_a_causal_model_is_accepted(numerics, dtype, document_start_id):
    model = build(100, numerics=numerics, sliding_window=WINDOW)
    model.document_start_id = document_start_id
    dtypes = set()
    model.layers[0].mlp.gate_proj.register_forward_hook(lambda layer, inputs, output: dtypes.add(output.dtype))

    for batch_size in (1, 30):
        check(model, batch_size, dtype)

    assert model.training
    assert dtypes == {dtype}


@pytest.mark.parametrize(("numerics", "batch_size"), [("exact", 1), ("fast", 30)])
@pytest.mark.parametrize(
    ("leak", "position"),
    [
        pytest.param(lambda x: x + 0.5 * x.roll(-1, 1), 0, id="the next token"),
        pytest.param(lambda x: x + x[:, -1:], 0, id="the last token"),
        pytest.param(pool(5), 0, id="a block of five"),
        pytest.param(see_at(WINDOW - 1, WINDOW), WINDOW - 1, id="the end of the sliding window"),
        pytest.param(see_at(SEQ_LEN // 2 - 1, SEQ_LEN // 2), SEQ_LEN // 2 - 1, id="the next document"),
        pytest.param(see_at(SEQ_LEN // 2, SEQ_LEN // 2 + 1), SEQ_LEN // 2, id="the document's first token"),
        pytest.param(see_at(SEQ_LEN - 2, SEQ_LEN - 1), SEQ_LEN - 2, id="the last two"),
    ],
)
def test_a_model_that_sees_the_future_is_refused_with_the_first_position_that_does(
    leak, position, batch_size, numerics
):
    with pytest.raises(IntegrityError, match=rf"^validation\.bin: .* at position {position} of a window of {SEQ_LEN} "):
        check(leaky(leak, numerics), batch_size)


def test_a_leak_where_documents_begin_is_found_in_a_text_of_one():
    """A model masks other documents by other code."""
    model = build(100)
    model.document_start_id = EOT
    model.layers[0].register_forward_pre_hook(see_next_under_a_mask)

    with pytest.raises(IntegrityError, match="at position 0 "):
        check(model, tokens=TokenFile(Path("text.bin"), stream().ids % EOT, stream().meta))


def see_next_under_a_mask(layer, inputs):
    x, table, cache, mask = inputs
    return (x if mask is None else x + x.roll(-1, 1)), table, cache, mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_fast_numerics_rounding_alone_is_no_leak(dtype):
    """As if later tokens changed the order of a sum."""
    eps = torch.finfo(dtype).eps

    check(leaky(lambda x: x * (1 + eps * (x[:, -1:, :1] > 0))), dtype=dtype)


def test_in_exact_numerics_one_bit_is_a_leak():
    def leak(x):
        x[:, 3, 0] += (x[:, -1, 0] > 0) * x[:, 3, 0] * torch.finfo(torch.float32).eps
        return x

    with pytest.raises(IntegrityError, match="at position 3 "):
        check(leaky(leak, "exact"))


@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_what_is_scored_is_what_the_model_returns(numerics):
    model = build(100, numerics=numerics, sliding_window=WINDOW)
    check_logits(model, stream(), SEQ_LEN, torch.float32)
    check_logits(model, stream(1), SEQ_LEN, torch.float32)

    head = model.head
    model.head = lambda h: 2 * torch.tanh(head(h) / 2)

    with pytest.raises(IntegrityError, match=r"^validation\.bin: the loss of token \d+ is"):
        check_logits(model, stream(), SEQ_LEN, torch.float32)
