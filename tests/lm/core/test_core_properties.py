"""What holds for any YAML scalar: lm.core.params reads the value that DVC reads and records."""

import tempfile
from pathlib import Path

from dvc.utils.serialize import dump_yaml, parse_yaml
from hypothesis import given
from hypothesis import strategies as st

from lm.core.params import read_yaml
from support.properties import check_examples

# Numbers as people and DVC write them, and words that YAML 1.1 and 1.2 read differently.
NUMBERS = st.from_regex(r"[-+]?(\d{1,18}|\d{0,6}\.\d{1,6}|\d{1,6}\.)([eE][-+]?\d{1,2})?", fullmatch=True).filter(
    lambda text: text.isascii()
)
WORDS = st.sampled_from(
    ["true", "True", "FALSE", "null", "~", "", "yes", "no", "on", "off", "Yes", "y", "n", ".inf", "-.inf", "1e", "e1",
     "0.1.2", "010", "+5", "-0", "data/local", "bpe", "NaN", "inf", "torch_headers", "1,000", "12:30:00"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)
    | st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcxyz_", min_size=1), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def read(text: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "params.yaml"
        path.write_text(text, encoding="utf-8")
        return read_yaml(path)


def same(ours, theirs) -> bool:
    """Return True if two values and their types are equal, item by item."""
    return repr(ours) == repr(theirs)


@check_examples
@given(text=NUMBERS | WORDS)
def test_a_scalar_is_read_as_dvc_reads_it(text):
    assert same(read(f"x: {text}\n"), dict(parse_yaml(f"x: {text}\n", "params.yaml")))


@check_examples
@given(value=st.dictionaries(st.text("abcxyz_", min_size=1), VALUES, min_size=1, max_size=4))
def test_what_dvc_writes_is_read_back(value):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "params.yaml"
        dump_yaml(path, value)
        assert same(read_yaml(path), value)
