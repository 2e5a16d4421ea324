"""The committed bits, the same on every processor; and the bits of one's own run, before and after a change."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import train as train_stage
from lm.core.files import read_json, write_json
from lm.exact import functions as exact
from lm.exact.threads import ThreadTuner, set_num_threads
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.tokenizer.build import write_trained_bpe
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import write_tokens
from lm.train.config import read_params
from lm.train.ranks import SINGLE_PROCESS
from lm.train.run import Run
from support import ROOT
from support.stages import MICRO_MODEL, change_params, stage_folder
from support.train_cases import TOKENIZER
from tools.common.retrain import FILES
from tools.prove import cli, digests, own_run

GOLDEN = ["--golden", str(ROOT / "metrics" / "golden_bits.json")]
FLAGS = {
    "--train": "data/processed_datasets/train.bin", "--validation": "data/processed_datasets/validation.bin",
    "--tokenizer": "data/tokenizer", "--models": "data/models", "--metrics": "metrics", "--plots": "plots",
}  # fmt: skip
STAGE = [word for flag in FLAGS.items() for word in flag]
SMALL = {
    "models.micro": MICRO_MODEL, "model.name": "micro", "train.seq_len": 32, "train.batch_tokens": 512,
    "train.micro_batch_tokens": 256, "train.max_tokens": 4096, "train.warmup_steps": 2, "train.eval_tokens": 512,
    "train.log_every_tokens": 1024, "train.eval_every_tokens": 2048, "train.sampled_vocab_size": 25,
    "train.ngram_buckets": None, "train.dtype": "float32",
}  # fmt: skip


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


@pytest.mark.parametrize("number", [0, -1])
def test_a_number_of_threads_below_one_is_refused(capsys, number):
    assert cli.main([*GOLDEN, "--run", "short", "--threads", str(number)]) == 2
    assert f"--threads is {number}; it must be at least 1" in capsys.readouterr().err


def test_the_first_operation_that_differs_is_named(threads, monkeypatch, capsys):
    scaled = torch.nn.functional.silu
    monkeypatch.setattr("lm.exact.functions.gated_gelu", lambda gate, up: scaled(gate) * up)
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
    for name in ("--train", "--validation"):
        write_tokens(Path(FLAGS[name]), [ids], "uint16", lambda: meta)


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
    folder = Path(FLAGS["--tokenizer"])
    folder.mkdir()
    write_trained_bpe(folder, [["a text of some words"]], 257)
    tokenizer = load_tokenizer(folder)
    write_token_files(TOKENIZER | {"sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size})


def continue_a_model() -> None:
    """Train a model, and let the run start from it."""
    assert train_stage.main(STAGE) == 0
    shutil.copytree("data/models", "data/init", dirs_exist_ok=True)


CASES = [
    ({"train.ngram_buckets": 64}, add_tokenizer),
    ({"train.attend_across_documents": False, "train.schedule": "cosine", "train.grad_clip": 0.01}, None),
    ({"train.numerics": "fast", "train.optimizer": "adamw", "train.seed": 3}, continue_a_model),
]


@pytest.mark.parametrize(("changes", "prepare"), CASES, ids=["spelling", "documents", "initial weights"])
def test_a_run_has_the_weights_and_moments_of_the_stage(own, changes, prepare):
    if prepare is not None:
        prepare()
    change_params(own, changes)
    assert train_stage.main(STAGE) == 0
    recorded = [line.split(",") for line in Path("plots/validation.csv").read_text().splitlines()]
    digest_of_step = {row[0]: row[3] for row in recorded}

    run = Run.read(FILES, read_params())
    training = run.start(SINGLE_PROCESS, torch.device("cpu"))
    threads = ThreadTuner(run.params.numerics, adapts=False)
    arguments = (run.params, training.dtype, 8, 1, threads)
    found = digests.digest_steps(training.state, training.windows, *arguments, with_operations=True)

    assert list(found["weights"]) == [str(step) for step in range(1, 9)]
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
    expected = f"same bits as bits.json: 5 steps, weights {last}, the same versions and machine\n"
    assert capsys.readouterr().out.endswith(expected)
    assert prove("--expect", last[:6]) == 0
    assert prove("--expect", "000000") == 4
    assert capsys.readouterr().err == f"error: the last weights have the digest {last}; --expect is 000000\n"


def test_an_operation_of_torch_that_differs_is_named(own, library, capsys):
    change_params(own, {"train.numerics": "fast"})
    assert prove("--write") == 0
    bits = read_json("bits.json")
    bits["computed_on"]["torch"] = "2.1.0"
    bits["first step"] = {"aten.no_longer_called in norm, call 1": "0" * 12} | bits["first step"]
    write_json("bits.json", bits)

    here = torch.__version__.split("+")[0]
    assert prove() == 0
    assert capsys.readouterr().out.endswith(f", torch 2.1.0 → {here}\n")

    replace_kernel(library, "gelu_backward", lambda grad, x, approximate="none": grad * 0.5)
    assert prove() == 4
    differs = f"bits.json: torch 2.1.0 → {here}: the first step differs in: "
    assert capsys.readouterr().err == f"error: {differs}aten.gelu_backward in layers.1.mlp (backward), call 1\n"

    replace_kernel(library, "rsqrt", lambda x: x**-0.5 * (1 + 2**-20))
    assert prove() == 4
    assert capsys.readouterr().err == f"error: {differs}aten.rsqrt in layers.0.input_layernorm, call 1\n"


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
    power = exact.power
    monkeypatch.setattr("lm.exact.functions.power", lambda base, exponent: power(base, exponent) * (1 + 1e-5))
    assert prove() == 4
    assert capsys.readouterr().err.endswith("the first step differs in: update of norm.weight\n")


def test_weights_that_differ_from_the_third_step_on_are_dated(own, monkeypatch, capsys):
    assert prove("--write") == 0
    rate = digests.learning_rate
    monkeypatch.setattr(digests, "learning_rate", lambda step, p: rate(step, p) * (1 + (step == 2) * 1e-3))
    assert prove() == 4
    expected = "the first step has the same bits, the weights first differ after step 3\n"
    assert capsys.readouterr().err.endswith(expected)


def test_the_bits_of_another_run_are_not_compared(own, capsys):
    assert prove("--write") == 0
    change_params(own, {"train.seed": 7})
    write_token_files(num_tokens=3001)
    assert prove("--steps", "3") == 2
    message = capsys.readouterr().err
    assert message.startswith("error: bits.json: is of another run: train.seed 1 → 7, tokens ")
    assert message.endswith(
        ", steps 5 → 3; use the parameters and data of that run, or write it with `python src prove --params --write`\n"
    )


def test_a_run_from_other_initial_weights_is_another_one(own, capsys):
    assert prove("--write") == 0
    continue_a_model()
    assert prove() == 2
    assert "error: bits.json: is of another run: initial weights None → " in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dtype_that_is_chosen_on_the_machine_is_that_of_the_file(own, monkeypatch, dtype):
    change_params(own, {"train.numerics": "fast", "train.dtype": "auto"})
    assert prove("--write") == 0
    bits = read_json("bits.json")
    bits["computed_on"]["dtype"] = dtype
    write_json("bits.json", bits)

    def record(state, windows, params, dtype, *arguments, **options):
        """Take the place of the training: record its dtype, and return the digests of the file."""
        computed.append(dtype)
        return bits

    computed = []
    monkeypatch.setattr(own_run, "digest_steps", record)
    monkeypatch.setattr("lm.model.machine.has_bfloat16", lambda device: True)
    assert prove() == 0
    assert computed == [getattr(torch, dtype)]


def test_a_missing_or_damaged_file_is_refused_before_the_training(own, monkeypatch, capsys):
    assert prove("--write") == 0
    intact = read_json("bits.json")
    less = {"weights": {"1": "0" * 12}}
    damages = [
        (None, "missing"),
        ("{", "not valid JSON"),
        (json.dumps({"weights": {}}), "run is missing"),
        (json.dumps(intact | less), "weights.2 is missing"),
        (json.dumps(intact | {"first step": {"a": 1}}), "first step.a is 1"),
        (json.dumps(intact | {"computed_on": {"dtype": "int8"}}), "computed_on.dtype is int8"),
    ]
    monkeypatch.setattr(own_run, "digest_steps", None)
    for content, problem in damages:
        Path("bits.json").unlink(missing_ok=True)
        if content is not None:
            Path("bits.json").write_text(content)
        capsys.readouterr()
        assert prove() == 4
        message = capsys.readouterr().err
        assert message.startswith(f"error: bits.json: {problem}") and message.count("\n") == 1
        assert message.endswith("; write it with `python src prove --params --write`\n")


def refusal(capsys, *arguments: str) -> tuple[int, str]:
    """Return the exit status of `prove --params`, and its one sentence."""
    capsys.readouterr()
    status = prove(*arguments)
    (line,) = capsys.readouterr().err.splitlines()
    return status, line


def test_a_run_that_cannot_be_digested_is_refused(own, monkeypatch, capsys):
    steps = "error: --steps is 9; it must be from 1 to 8, the steps of the run"
    assert refusal(capsys, "--steps", "9") == (2, steps)
    change_params(own, {"train.numerics": "fast", "train.compile": True})
    status, line = refusal(capsys, "--write")
    assert status == 2 and "params.yaml: train.compile is true; it must be false" in line
    change_params(own, {"train.compile": False, "train.dtype": "bfloat16"})
    monkeypatch.setattr("lm.model.machine.has_bfloat16", lambda device: False)
    status, line = refusal(capsys, "--write")
    assert status == 5 and "train.dtype is bfloat16, which this cpu only emulates" in line


def test_token_files_that_do_not_fit_are_refused(own, capsys):
    write_token_files(num_tokens=32)
    assert refusal(capsys, "--write") == (
        3,
        f"error: {FLAGS['--train']}: 32 tokens, one window of train.seq_len needs 33",
    )
    add_tokenizer()
    write_token_files()
    change_params(own, {"train.ngram_buckets": 64})
    status, line = refusal(capsys, "--write")
    assert status == 4 and f"{FLAGS['--train']}: made with tokenizer " in line


def test_views_and_new_memory_are_not_digested():
    model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50))
    found = {}
    with digests.Operations(model, found, "here"):
        torch.empty(3).view(3, 1)
        torch.ones(2)
        torch.ones(2)
        torch.zeros(2).new_empty(4)[1:]
    assert list(found) == ["aten.ones here, call 1", "aten.ones here, call 2", "aten.zeros here, call 1"]
    assert len(set(found.values())) == 2


# Arguments.


@pytest.mark.parametrize(("expected", "status"), [("0123456789AB", 0), ("012345", 0), ("123456", 4)])
def test_the_last_weights_are_compared_with_a_digest(monkeypatch, capsys, expected, status):
    found = {"first step": {}, "weights": {"1": "123456" * 2, "2": "0123456789ab"}}
    monkeypatch.setattr(cli, "train", lambda name, threads, device: found)
    assert cli.main(["--run", "short", "--expect", expected, "--golden", "nowhere.json"]) == status
    out, err = capsys.readouterr()
    if status == 0:
        assert (out, err) == ("same bits as expected: weights 0123456789ab\n", "")
    else:
        assert (out, err) == ("", "error: the last weights have the digest 0123456789ab; --expect is 123456\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--expect 01234", "--expect: is 01234; it must be 6 to 12 hex digits"),
        ("--expect 0123456789abc", "it must be 6 to 12 hex digits"),
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


def test_an_operation_that_is_missing_differs():
    golden = {"first step": {"a": "1", "b": "2"}, "weights": {"1": "3", "2": "4"}}

    without_operation = {**golden, "first step": {"a": "1"}}
    without_step = {**golden, "weights": {"1": "3"}}

    assert digests.first_difference(golden, golden, "committed") is None
    assert digests.first_difference(without_operation, golden, "committed") == "the first step differs in: b"
    said = digests.first_difference(without_step, golden, "committed")
    assert said == "the first step has the committed bits, the weights first differ after step 2"
