"""The committed bits, the same on every processor, and the name of what gives other ones."""

from dataclasses import make_dataclass

import pytest
import torch

from lm.core.files import read_json, write_json
from lm.exact import functions as exact
from lm.exact import order
from lm.exact.threads import ThreadTuner, set_num_threads
from support import ROOT
from support.refusal import refused
from tools.prove import cli, digests, golden_run

GOLDEN = ["--golden", str(ROOT / "metrics" / "golden_bits.json")]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    set_num_threads(before, "fast")


@pytest.mark.parametrize(("count", "said"), [(1, "1 thread"), (3, "3 threads")])
def test_twenty_steps_have_the_committed_bits(count, said, threads, capsys):
    threads(2)
    ThreadTuner("exact", adapts=False)  # of an earlier run of this process

    status = cli.main([*GOLDEN, "--run", "short", "--threads", str(count)])

    out, err = capsys.readouterr()
    assert status == 0, err
    assert out.endswith(f" {said}\n")


def test_a_new_parameter_that_the_committed_run_lacks_is_named(monkeypatch, capsys):
    with_another = make_dataclass("TrainParams", [("grad_clamp", float)], bases=(golden_run.TrainParams,), frozen=True)
    monkeypatch.setattr(golden_run, "TrainParams", with_another)

    status = cli.main([*GOLDEN, "--run", "short"])

    refused(status, capsys.readouterr().err, 2, "src/tools/prove/golden_run.py", "train.grad_clamp is missing")


def test_a_processor_is_recorded_once(tmp_path, monkeypatch):
    committed = read_json(ROOT / "metrics" / "golden_bits.json")
    golden = tmp_path / "golden.json"
    write_json(golden, committed)
    monkeypatch.setattr(cli, "train", lambda name, threads, device: committed[name])

    for _ in range(2):
        assert cli.main(["--golden", str(golden), "--run", "short", "--record"]) == 0

    seen = [
        (entry["run"], entry["how"], entry["threads"])
        for entry in read_json(golden)["seen_on"]
        if entry["processor"] == cli.processor()
    ]
    assert ("short", "natively") in {(run, how) for run, how, _ in seen}
    assert len(seen) == len(set(seen))


# What differs is named.


@pytest.fixture
def difference(capsys):
    """Return a function that runs the short run and returns what the message says beside the file and the processor."""

    def run() -> str:
        capsys.readouterr()
        assert cli.main([*GOLDEN, "--run", "short"]) == 4
        return capsys.readouterr().err.partition(cli.processor())[2].strip()

    return run


def test_a_module_that_differs_is_named(difference, monkeypatch):
    rms_norm = exact.rms_norm
    calls = []

    def rounded_in_the_second_block(x, weight, eps):
        """Round the result of the seventh norm; a block has six."""
        calls.append(x)
        result = rms_norm(x, weight, eps)
        return result.bfloat16().float() if len(calls) == 7 else result

    monkeypatch.setattr("lm.exact.functions.rms_norm", rounded_in_the_second_block)

    assert difference() == "the first step differs in: micro-batch 1: layers.1.input_layernorm"


def test_an_update_that_differs_is_named(difference, monkeypatch):
    power = order.power
    monkeypatch.setattr("lm.train.optimizers.power", lambda base, exponent: power(base, exponent) * (1 + 1e-5))

    assert difference().startswith("the first step differs in: update of ")


def test_weights_that_differ_from_the_third_step_on_are_dated(difference, monkeypatch):
    rate = digests.learning_rate

    def changed(at_step, params):
        factor = 1 + 1e-3 if at_step == 2 else 1
        return rate(at_step, params) * factor

    monkeypatch.setattr(digests, "learning_rate", changed)

    sentence = "the first step has the committed bits, the weights first differ between steps 1 and 5"
    assert difference() == sentence


# Arguments.


def test_the_last_weights_are_compared_with_an_expected_digest(monkeypatch, capsys):
    found = {"first step": {}, "weights": {"1": "123456123456", "2": "0123456789ab"}}
    monkeypatch.setattr(cli, "train", lambda name, threads, device: found)

    def status_of(expected: str) -> int:
        return cli.main(["--run", "short", "--expect", expected, "--golden", "nowhere.json"])

    assert status_of("0123456789AB") == 0
    assert status_of("012345") == 0
    assert status_of("123456") == 4, "the digest of the first step"
    assert "the digest 0123456789ab; --expect is 123456" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--expect 01234", "--expect: is 01234; it must be 6 to 12 hex digits"),
        ("--expect 01234g", "it must be 6 to 12 hex digits"),
        ("--expect 012345 --write", "not allowed with"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments.split())

    assert sentence in capsys.readouterr().err


def test_an_operation_or_a_step_that_is_missing_differs():
    golden = {
        "first step": {"a": "1", "b": "2"},
        "weights": {"1": "3", "2": "4"},
    }
    without_operation = golden | {"first step": {"a": "1"}}
    without_step = golden | {"weights": {"1": "3"}}

    def difference(found: dict) -> str | None:
        return digests.first_difference(found, golden)

    assert difference(golden) is None
    assert difference(without_operation) == "the first step differs in: b"
    assert difference(without_step) == "the first step has the committed bits, the weights first differ after step 2"

    # Of a long run, not the weights of each step are digested.
    golden = {"first step": {"a": "1"}, "weights": {"5": "2", "10": "3"}}
    assert difference(golden | {"weights": {"5": "2", "10": "4"}}).endswith("between steps 5 and 10")
