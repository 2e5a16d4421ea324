"""The committed bits, the same on every processor; and the bits of one's own run, before and after a change."""

import csv
import json
import shutil
import warnings
from dataclasses import make_dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from lm.core.files import read_json, write_json
from lm.exact import functions as exact
from lm.exact import order
from lm.exact.threads import ThreadTuner, set_num_threads
from lm.tokenizer.build import write_trained_bpe
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import write_tokens
from lm.train.config import read_params
from lm.train.ranks import SINGLE_PROCESS
from lm.train.run import Run
from support import ROOT
from support.refusal import refused
from support.stages import TINY, change_params, run_here, stage_folder
from support.train_cases import TOKENIZER
from tools.prove import cli, digests, golden_run, own_run
from tools.prove.own_run import FILES

GOLDEN = ["--golden", str(ROOT / "metrics" / "golden_bits.json")]
TRAIN = Path("data/processed_datasets/train.bin")
VALIDATION = Path("data/processed_datasets/validation.bin")
# A run of 8 steps of two micro-batches, with a sampled vocabulary.
SMALL = TINY | {
    "train.batch_tokens": 512,
    "train.max_tokens": 4096,
    "train.log_every_tokens": 1024,
    "train.eval_every_tokens": 2048,
    "train.sampled_vocab_size": 25,
    "train.dtype": "float32",
}


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    set_num_threads(before, "fast")


def change_learning_rate(monkeypatch, step: int, by: float) -> None:
    """Multiply the learning rate of one step by a little more than 1."""
    rate = digests.learning_rate

    def changed(at_step, params):
        factor = 1 + by if at_step == step else 1
        return rate(at_step, params) * factor

    monkeypatch.setattr(digests, "learning_rate", changed)


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


# The bits of one's own run.


@pytest.fixture
def own(tmp_path, threads, monkeypatch):
    """The current directory: a small run of 8 steps, with its token files."""
    folder = stage_folder(tmp_path / "own")
    change_params(folder, SMALL)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    write_token_files()
    return folder


def write_token_files(tokenizer: dict = TOKENIZER, num_tokens: int = 3000) -> None:
    """Write token files of documents of 40 tokens, in which low ids are frequent and high ids rare."""
    place = np.arange(num_tokens)
    uniform = place * place * 7919 % 4099 % 50
    ids = (uniform * uniform // 51).astype(np.uint16)
    ids[39::40] = TOKENIZER["eot_id"]
    meta = {"documents": num_tokens // 40, "utf8_bytes": num_tokens, "tokenizer": tokenizer}
    for path in (TRAIN, VALIDATION):
        write_tokens(path, [ids], "uint16", lambda: meta)


def run_stage() -> None:
    assert run_here("train") == 0


def prove(*arguments: str) -> int:
    """Run `prove --params`."""
    return cli.main(["--params", "--threads", "1", *arguments])


def replace_kernel(library: torch.library.Library, name: str, kernel) -> None:
    """Let an operation of torch compute something else on CPUs, as another version of torch might."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns, once, that the kernel is replaced
        library.impl(name, kernel, "CPU")


@pytest.fixture
def library():
    """The operations of torch, of which a test replaces some until its end."""
    library = torch.library.Library("aten", "IMPL")
    yield library
    library._destroy()


def add_tokenizer() -> None:
    """Train a tokenizer, and name it in the sidecars of the token files."""
    folder = Path("data/tokenizer")
    folder.mkdir()
    write_trained_bpe(folder, [["a text of some words"]], 257)
    tokenizer = load_tokenizer(folder)
    made_with = {"sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size}
    write_token_files(TOKENIZER | made_with)


def continue_a_model() -> None:
    """Train a model, and let the run start from it."""
    run_stage()
    shutil.copytree("data/models", "data/init", dirs_exist_ok=True)


OTHER_DOCUMENTS = {
    "train.attend_across_documents": False,
    "train.schedule": "cosine",
    "train.grad_clip": 0.01,
}
FAST = {
    "train.numerics": "fast",
    "train.optimizer": "adamw",
    "train.seed": 3,
}


@pytest.mark.parametrize(
    ("changes", "prepare"),
    [
        pytest.param({"train.ngram_buckets": 64}, add_tokenizer, id="spelling"),
        pytest.param(OTHER_DOCUMENTS, lambda: None, id="documents"),
        pytest.param(FAST, continue_a_model, id="initial weights"),
    ],
)
def test_a_run_has_the_weights_and_moments_of_the_stage(own, changes, prepare):
    prepare()
    change_params(own, changes)
    run_stage()
    with open("plots/validation.csv", newline="") as file:
        digest_of_step = {row["step"]: row["checkpoint_digest"] for row in csv.DictReader(file)}

    run = Run.read(FILES, read_params())
    training = run.start(SINGLE_PROCESS, torch.device("cpu"))
    found = digests.digest_steps(
        training.state,
        training.windows,
        run.params,
        training.dtype,
        8,
        1,
        ThreadTuner(run.params.numerics, adapts=False),
        with_operations=True,
    )

    assert list(found["weights"]) == ["1", "2", "3", "4", "5", "6", "7", "8"]
    assert training.state.digest() == digest_of_step["8"]


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_a_run_has_the_same_bits_again(own, capsys, numerics):
    change_params(own, {"train.numerics": numerics})
    assert prove("--write") == 0
    bits = read_json("bits.json")
    last = bits["weights"]["5"]
    assert {"torch", "numpy", "numba", "processor", "threads", "dtype", "numerics"} <= bits["computed_on"].keys()
    assert f"bits.json has the bits of this run: 5 steps, weights {last}\n" in capsys.readouterr().out

    assert prove() == 0
    assert prove("--expect", last[:6]) == 0
    assert prove("--expect", "000000") == 4

    out, err = capsys.readouterr()
    assert f"same bits as bits.json: 5 steps, weights {last}, the same versions and machine\n" in out
    assert last in err


TORCH_HERE = torch.__version__.split("+")[0]


@pytest.fixture
def written_by_torch_2_1(own) -> None:
    """The bits of a run in fast numerics, of another version of torch; it calls an operation that is gone."""
    change_params(own, {"train.numerics": "fast"})
    assert prove("--write") == 0
    bits = read_json("bits.json")
    bits["computed_on"]["torch"] = "2.1.0"
    bits["first step"] = {"aten.no_longer_called in norm, call 1": "0" * 12} | bits["first step"]
    write_json("bits.json", bits)


@pytest.mark.usefixtures("written_by_torch_2_1")
def test_the_same_bits_of_another_version_are_the_same(capsys):
    assert prove() == 0

    assert capsys.readouterr().out.endswith(f", torch 2.1.0 → {TORCH_HERE}\n")


@pytest.mark.usefixtures("written_by_torch_2_1")
@pytest.mark.parametrize(
    ("operation", "kernel", "place"),
    [
        ("gelu_backward", lambda grad, x, approximate="none": grad * 0.5, "layers.1.mlp (backward)"),
        ("rsqrt", lambda x: x**-0.5 * (1 + 2**-20), "layers.0.input_layernorm"),
    ],
)
def test_an_operation_of_torch_that_differs_is_named(library, capsys, operation, kernel, place):
    replace_kernel(library, operation, kernel)

    assert prove() == 4

    versions = f"bits.json: torch 2.1.0 → {TORCH_HERE}"
    difference = f"the first step differs in: aten.{operation} in {place}, call 1"
    assert capsys.readouterr().err == f"error: {versions}: {difference}\n"


def test_a_module_that_differs_in_exact_numerics_is_named(own, monkeypatch, capsys):
    assert prove("--write") == 0
    rms_norm = exact.rms_norm
    calls = []

    def rounded_in_the_second_block(x, weight, eps):
        """Round the result of the seventh norm; a block has six."""
        calls.append(x)
        result = rms_norm(x, weight, eps)
        return result.bfloat16().float() if len(calls) == 7 else result

    monkeypatch.setattr("lm.exact.functions.rms_norm", rounded_in_the_second_block)

    assert prove() == 4

    problem = "the first step differs in: micro-batch 1: layers.1.input_layernorm\n"
    assert capsys.readouterr().err == f"error: bits.json: the same versions and machine: {problem}"


def test_an_update_that_differs_is_named(own, monkeypatch, capsys):
    change_params(own, {"train.optimizer": "adamw"})
    assert prove("--write") == 0
    power = order.power
    monkeypatch.setattr("lm.train.optimizers.power", lambda base, exponent: power(base, exponent) * (1 + 1e-5))

    assert prove() == 4

    assert capsys.readouterr().err.endswith("the first step differs in: update of norm.weight\n")


def test_weights_that_differ_from_the_third_step_on_are_dated(own, monkeypatch, capsys):
    assert prove("--write") == 0
    change_learning_rate(monkeypatch, step=2, by=1e-3)

    assert prove() == 4

    difference = "the first step has the same bits, the weights first differ after step 3\n"
    assert capsys.readouterr().err.endswith(difference)


def test_the_bits_of_another_run_are_not_compared(own, capsys):
    assert prove("--write") == 0
    change_params(own, {"train.seed": 7})
    write_token_files(num_tokens=3001)

    remedy = "`python src prove --params --write`"
    of_parameters = ("train.seed 1 → 7", "tokens ", "steps 5 → 3")
    refuse(capsys, 2, "bits.json: is of another run: ", remedy, *of_parameters, arguments=["--steps", "3"])

    continue_a_model()
    refuse(capsys, 2, "bits.json: is of another run: ", remedy, "initial weights None → ")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dtype_that_is_chosen_on_the_machine_is_that_of_the_file(own, monkeypatch, dtype):
    change_params(own, {"train.numerics": "fast", "train.dtype": "auto"})
    assert prove("--write") == 0
    bits = read_json("bits.json")
    bits["computed_on"]["dtype"] = dtype
    write_json("bits.json", bits)
    computed = []

    def record(state, windows, params, dtype, *arguments, **options):
        """Take the place of the training: record its dtype, and return the digests of the file."""
        computed.append(dtype)
        return bits

    monkeypatch.setattr(own_run, "digest_steps", record)
    monkeypatch.setattr("lm.model.machine.has_bfloat16", lambda device: True)

    assert prove() == 0

    assert computed == [getattr(torch, dtype)]


def test_a_missing_or_damaged_file_is_refused_before_the_training(own, monkeypatch, capsys):
    assert prove("--write") == 0
    intact = read_json("bits.json")
    damaged = [
        ("{", "not valid JSON"),
        (json.dumps(intact | {"weights": {"1": "0" * 12}}), "weights.2 is missing"),
        (json.dumps(intact | {"first step": {"a": 1}}), "first step.a is 1"),
        (json.dumps(intact | {"computed_on": {"dtype": "int8"}}), "computed_on.dtype is int8"),
    ]
    monkeypatch.setattr(own_run, "digest_steps", None)

    for content, problem in damaged:
        Path("bits.json").write_text(content)
        refuse(capsys, 4, f"bits.json: {problem}", "; write it with `python src prove --params --write`")


def refuse(capsys, code: int, *parts: str, arguments=()) -> None:
    """Check that `prove --params` is refused with one sentence that has these parts."""
    capsys.readouterr()
    status = prove(*arguments)
    refused(status, capsys.readouterr().err, code, *parts)


def test_more_steps_than_the_run_has_are_refused(own, capsys):
    refuse(capsys, 2, "--steps is 9; it must be from 1 to 8", arguments=["--steps", "9"])


def test_a_compiled_model_is_refused(own, capsys):
    change_params(own, {"train.numerics": "fast", "train.compile": True})

    refuse(capsys, 2, "params.yaml: train.compile is true; it must be false", arguments=["--write"])


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
        ("--params --run short", "not allowed with"),
        ("--params --record", "leave out --params"),
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
        return digests.first_difference(found, golden, "committed")

    assert difference(golden) is None
    assert difference(without_operation) == "the first step differs in: b"
    assert difference(without_step) == "the first step has the committed bits, the weights first differ after step 2"

    # Of a long run, not the weights of each step are digested.
    golden = {"first step": {"a": "1"}, "weights": {"5": "2", "10": "3"}}
    assert difference(golden | {"weights": {"5": "2", "10": "4"}}).endswith("between steps 5 and 10")
