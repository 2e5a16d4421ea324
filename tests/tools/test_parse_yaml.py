"""The quick reader of YAML reads what DVC's reader, ruamel.yaml, reads."""

import pytest
from ruamel.yaml import YAML

from support import ROOT
from tools.common.parameters import parse_yaml

NUMBERS = "1e-05, 1.5, .5, 12, -3e4, 1.0e+3, 0, -7, 1_000, 0x1F, .inf, 1e5, +2"
OTHERS = "null, ~, true, on, no, yes, 2026-11-27, a: b, '1e3', \"1\", [], {}"  # "on" is true in YAML 1.1 only


def test_values_have_the_types_of_yaml_1_2():
    text = f"a: [{NUMBERS}, {OTHERS}]"

    values = parse_yaml(text)["a"]

    expected = YAML(typ="safe").load(text)["a"]
    assert values == expected
    assert list(map(type, values)) == list(map(type, expected))


@pytest.mark.parametrize("name", ["dvc.lock", "dvc.yaml", "params.yaml", "presets.yaml", "sources.yaml"])
def test_the_files_of_the_repository_are_read(name):
    text = (ROOT / name).read_text()

    assert parse_yaml(text) == YAML(typ="safe").load(text)


@pytest.mark.parametrize("text", ["", "a", "[a]", "a: [", "a: b: c"])
def test_what_is_not_a_mapping_is_refused(text):
    with pytest.raises(ValueError, match=r"not valid YAML|must be a mapping"):
        parse_yaml(text)
