"""The committed bits: the same for any number of threads on whatever processor the tests meet."""

import pytest
import torch

from lm.model.threads import set_num_threads
from support import ROOT
from tools.prove import cli, digests

GOLDEN = ["--golden", str(ROOT / "metrics" / "golden_bits.json")]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    set_num_threads(before, "fast")


@pytest.mark.parametrize("count", [1, 3])
def test_twenty_steps_have_the_committed_bits(count, threads, capsys):
    assert cli.main([*GOLDEN, "--run", "short", "--threads", str(count)]) == 0, capsys.readouterr().err
    threads = "1 thread\n" if count == 1 else f"{count} threads\n"
    assert capsys.readouterr().out.endswith(threads)


def test_the_first_operation_that_differs_is_named(threads, monkeypatch, capsys):
    scaled = torch.nn.functional.silu
    monkeypatch.setattr("lm.model.exact.gated_gelu", lambda gate, up: scaled(gate) * up)
    assert cli.main([*GOLDEN, "--run", "short"]) == 4
    assert "the first step differs in: micro-batch 1: layers.0.mlp.down_proj" in capsys.readouterr().err


def test_weights_that_part_later_are_dated(threads, monkeypatch, capsys):
    rate = digests.learning_rate
    monkeypatch.setattr(digests, "learning_rate", lambda step, p: rate(step, p) * (1 + (step == 7) * 1e-6))
    assert cli.main([*GOLDEN, "--run", "short"]) == 4
    assert "weights first differ between steps 5 and 10" in capsys.readouterr().err


def test_a_processor_is_recorded_once(tmp_path):
    golden = tmp_path / "golden.json"
    golden.write_bytes((ROOT / "metrics" / "golden_bits.json").read_bytes())
    for _ in range(2):
        assert cli.main(["--golden", str(golden), "--run", "short", "--record"]) == 0
    seen = [entry for entry in cli.read_json(golden)["seen_on"] if entry["processor"] == cli.processor()]
    assert len([entry for entry in seen if (entry["run"], entry["how"]) == ("short", "natively")]) >= 1
    assert len(seen) == len({(e["run"], e["how"], e["threads"]) for e in seen})
