"""`verify --processor`: the committed bits, the same on every processor, and the name of what gives other ones."""

import pytest
import torch

from lm.core.files import read_json, write_json
from lm.exact.threads import set_num_threads
from support import ROOT
from tools.verify import cli, processor

SHORT = ["--processor", "short"]


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    set_num_threads(3, "fast")
    yield
    set_num_threads(before, "fast")


def test_twenty_steps_have_the_committed_bits_with_three_threads(three_threads, capsys, monkeypatch):
    tuner = processor.ThreadTuner
    monkeypatch.setattr(processor, "ThreadTuner", lambda numerics, adapts: tuner(numerics, adapts=False))

    assert cli.main(SHORT) == 0

    out = capsys.readouterr().out
    assert out.startswith("same bits as committed: short run, weights 79c6aa73cfb1, ")
    assert out.endswith(" 3 threads\n")


@pytest.fixture
def golden(tmp_path, monkeypatch):
    """A copy of the committed file; the run is not trained, but has the bits of the file."""
    committed = read_json("metrics/golden_bits.json")
    path = tmp_path / "golden.json"
    write_json(path, committed)
    monkeypatch.setattr(processor, "GOLDEN", path)
    monkeypatch.setattr(processor, "train", lambda name, threads, device: committed[name])
    return path


def test_a_processor_is_recorded_once(golden):
    assert cli.main([*SHORT, "--record"]) == 0
    recorded = read_json(golden)

    assert cli.main([*SHORT, "--record"]) == 0

    assert processor.processor() in [entry["processor"] for entry in recorded["seen_on"]]
    assert read_json(golden) == recorded


def test_the_last_weights_are_compared_with_an_expected_digest(golden, capsys):
    golden.unlink()

    assert cli.main([*SHORT, "--expect", "79C6AA73CFB1"]) == 0
    assert cli.main([*SHORT, "--expect", "79c6aa"]) == 0
    assert cli.main([*SHORT, "--expect", "000000"]) == 4
    assert "the digest 79c6aa73cfb1; --expect is 000000" in capsys.readouterr().err


# What differs is named.


def test_the_steps_are_named_from_which_on_the_weights_differ(golden, capsys, monkeypatch):
    other = read_json(golden)["short"] | {"10": "0" * 12, "15": "1" * 12}
    monkeypatch.setattr(processor, "train", lambda name, threads, device: other)

    assert cli.main(SHORT) == 4

    assert f"{processor.processor()} the weights first differ between steps 5 and 10" in capsys.readouterr().err
