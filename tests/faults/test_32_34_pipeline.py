"""Memory that does not suffice, and real DVC: two at once, killed in any stage, stages that fail."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import eval as eval_stage
from lm.core.errors import EnvironmentFailure
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from lm.tokens.tokenfile import write_tokens
from lm.train.preflight import explain_out_of_memory
from support.stages import command_of
from support.train_cases import clear, restored, run_stage, wait_for
from support.workspace import Workspace

END = 399  # the end-of-text id of the vocabulary of 400
STAGES = ["fetch", "make_tokenizer", "tokenize_train", "tokenize_val", "audit", "train", "eval"]


# ---------------------------------------------------------------- 32: memory


@pytest.fixture
def training(template, monkeypatch):
    """A working directory in which the stage train runs, one step of 65,536 tokens."""
    monkeypatch.chdir(template.folder)
    clear()
    tokens = {name: 65536 for name in ("batch_tokens", "micro_batch_tokens", "max_tokens", "eval_every_tokens")}
    with restored("params.yaml"):
        template.change(**{f"train.{name}": value for name, value in tokens.items()}, **{"train.warmup_steps": 0})
        yield template


def limit_memory(more_bytes):
    """A sabotage: this process can have so many bytes more than it has now."""
    limit = psutil.Process().memory_info().vms + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="the limit on memory is Linux's")
def test_32_a_failed_allocation_ends_with_5_and_a_smaller_micro_batch_fits(training):
    ended = run_stage(limit_memory, 60 << 20)
    assert ended.code == 5
    assert "out of memory" in ended.sentence and "lower train.micro_batch_tokens" in ended.sentence
    training.change(**{"train.micro_batch_tokens": 512, "train.batch_tokens": 4096, "train.max_tokens": 4096})
    ended = run_stage(limit_memory, 60 << 20)
    assert ended.code == 0, ended.err


def test_32_what_cannot_fit_is_refused_before_anything_is_computed(training):
    training.change(**{f"train.{name}": 1 << 40 for name in ("batch_tokens", "micro_batch_tokens", "max_tokens")})
    ended = run_stage()
    assert ended.code == 5 and ended.out == ""
    assert re.search(r"needs about [\d.]+ GiB, [\d.]+ GiB are free; lower train\.micro_batch_tokens", ended.sentence)
    clear()
    training.change(**{f"train.{name}": 512 for name in ("batch_tokens", "micro_batch_tokens", "max_tokens")})
    assert run_stage().code == 0


def test_32_an_array_that_cannot_be_had_is_told_in_the_same_words():
    with pytest.raises(EnvironmentFailure, match=r"lower train\.micro_batch_tokens"), explain_out_of_memory():
        np.ones(1 << 50)


# ---------------------------------------------------------------- 33: two at once, and kill -9


def start_repro(workspace, *arguments):
    """`dvc repro` in a process group of its own; what it prints goes to a file.

    It takes an interrupt even if the tests ignore it, as commands do that a shell starts in the background.
    """
    with open(workspace.folder / "repro.txt", "w") as file:
        return subprocess.Popen(
            ["dvc", "repro", *arguments], cwd=workspace.folder, env=workspace.environment, start_new_session=True,
            stdout=file, stderr=subprocess.STDOUT, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip


def stage_of(repro, stage):
    """The process of a stage below `dvc repro`, None if there is none."""
    scripts = {"tokenize_train": "tokenize_split", "tokenize_val": "tokenize_split"}
    script = scripts.get(stage, stage)
    try:
        children = psutil.Process(repro.pid).children(recursive=True)
        return next((child for child in children if f"src/{script}.py" in child.cmdline()), None)
    except psutil.NoSuchProcess:
        return None


def kill_in(workspace, stage, after_s, group):
    """kill -9 so many seconds after a stage has begun: the whole process group, or DVC alone."""
    repro = start_repro(workspace, stage)
    wait_for(lambda: stage_of(repro, stage) or repro.poll() is not None)
    process = stage_of(repro, stage)
    time.sleep(after_s)
    assert repro.poll() is None, (workspace.folder / "repro.txt").read_text()
    os.killpg(repro.pid, signal.SIGKILL) if group else repro.kill()
    repro.wait()
    return process


def lock_of(workspace):
    path = workspace.folder / "dvc.lock"
    return path.read_text() if path.exists() else ""


@pytest.fixture
def workspace(tmp_path):
    """A small pipeline of which nothing has run; its first stage takes a second or two."""
    workspace = Workspace(tmp_path)
    workspace.make_small()
    workspace.write_small_text(20_000)
    workspace.commit()
    return workspace


def test_33_after_kill_9_one_command_recovers(workspace):
    kill_in(workspace, "fetch", 0.3, group=True)
    assert "\n  fetch:" not in lock_of(workspace)
    assert not (workspace.folder / "data" / "raw").exists()
    assert workspace.repro("fetch") == {"fetch"}
    assert [path.name for path in (workspace.folder / "data").glob(".raw*")] == [".raw.lock"]
    assert workspace.repro("fetch") == set()


@pytest.mark.slow
@pytest.mark.parametrize("group", [True, False])
def test_33_after_kill_9_in_any_stage_one_command_recovers(finished, tmp_path, group):
    """Where DVC alone is killed its stage lives on: until it has ended, the next one may refuse with 75."""
    workspace = Workspace(tmp_path / "copy", finished)
    undisturbed = results(workspace)
    (workspace.folder / "dvc.lock").unlink()
    for name in (".dvc/cache/runs", ".runs"):
        shutil.rmtree(workspace.folder / name)
    for stage in STAGES:
        process = kill_in(workspace, stage, 0.2, group)
        assert f"  {stage}:" not in lock_of(workspace)
        done = workspace.run("dvc", "repro", stage, check=False)
        if done.returncode:
            assert not group and "is writing it" in done.stderr, done.stderr
            wait_for(lambda process=process: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
            workspace.repro(stage)
    assert workspace.repro() == {"plot"}, "what was recovered does not run again"
    assert results(workspace) == undisturbed


def results(workspace):
    """What the stages record of their cached outputs."""
    return {
        (stage, out["path"]): out["md5"]
        for stage, entry in yaml.safe_load(lock_of(workspace))["stages"].items()
        for out in entry["outs"]
    }


# ---------------------------------------------------------------- 34: stages that fail


def runs_of_fetch(workspace):
    """Return the records of the stage in DVC's run cache."""
    records = (workspace.folder / ".dvc" / "cache" / "runs").rglob("*")
    return [path for path in records if path.is_file() and "src/fetch.py" in path.read_text()]


def test_34_of_a_failed_or_interrupted_stage_nothing_is_recorded(workspace):
    workspace.change(**{"sources.small.fetch.include": ""})
    done = workspace.run("dvc", "repro", "fetch", check=False)
    assert done.returncode == 255 and "exited with 2" in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "sources.small.fetch.include is ''" in errors[0]
    workspace.change(**{"sources.small.fetch.include": "small.jsonl"})

    def is_writing(repro):
        """Whether the stage is past its imports, in which Python may lose an interrupt."""
        process = stage_of(repro, "fetch")
        return process and (workspace.folder / "data" / f".raw.{process.pid}.tmp").exists()

    repro = start_repro(workspace, "fetch")
    wait_for(lambda: is_writing(repro))
    os.killpg(repro.pid, signal.SIGINT)
    assert repro.wait(60) != 0
    assert "\n  fetch:" not in lock_of(workspace) and not runs_of_fetch(workspace)
    assert not (workspace.folder / "data" / "raw").exists()
    workspace.write_small_text(300)
    assert workspace.repro("fetch") == {"fetch"}
    assert "\n  fetch:" in lock_of(workspace) and runs_of_fetch(workspace)


@pytest.fixture
def evaluate(tmp_path_factory, finished, monkeypatch, capsys):
    """Return a function that runs eval of the small pipeline on these tokens; its exit code and its error."""
    workspace = Workspace(tmp_path_factory.mktemp("evaluated") / "ws", finished)
    monkeypatch.chdir(workspace.folder)
    path = Path("data/processed_datasets/validation.bin")
    tokenizer = read_json(path.with_suffix(".json"))["tokenizer"]
    meta = {"documents": 1, "utf8_bytes": 99, "tokenizer": tokenizer}

    def run(ids, **counted) -> tuple[int, str]:
        written = write_tokens(path, [np.array(ids, np.uint16)], "uint16", lambda: meta | counted)
        num_documents = list(ids).count(END)
        contaminated = pa.table(
            {"contaminated_fraction": np.zeros(num_documents), "utf8_bytes": np.full(num_documents, 99)}
        )
        contaminated = contaminated.replace_schema_metadata({"validation_sha256": written["sha256"]})
        Path("data/audit/contamination.parquet").unlink(missing_ok=True)  # a link into DVC's cache
        pq.write_table(contaminated, "data/audit/contamination.parquet")
        record = read_json("data/models/model.json")
        record["data_sha256"]["validation"] = written["sha256"]
        write_json("data/models/model.json", record)
        Path("metrics/eval.json").unlink(missing_ok=True)
        command = command_of(read_yaml("dvc.yaml")["stages"]["eval"]).split()[2:]
        status, printed = eval_stage.main(command), capsys.readouterr()
        return status, printed.err if status else printed.out

    return run


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [([], "holds no token"), ([END], "1 tokens, one window"), (range(32), "32 tokens, one window"),
     ([END] * 100, "holds no text")],
)  # fmt: skip
def test_34_evaluating_too_little_ends_with_3_and_without_a_figure(evaluate, ids, sentence):
    status, err = evaluate(ids)
    assert status == 3, err
    last = err.strip().splitlines()[-1]
    assert "Traceback" not in err and last.startswith(f"error: data/processed_datasets/validation.bin: {sentence}")
    assert not Path("metrics/eval.json").exists()


def test_34_the_figures_of_a_lossy_tokenizer_are_marked(evaluate):
    for unknown, changed, is_lossy in ((3, 1, True), (0, 1, True), (3, 0, True), (0, 0, False)):
        losses = {"unknown_tokens": unknown, "changed_documents": changed}
        status, out = evaluate([*range(32), END], round_trip=losses)
        assert status == 0
        assert out.count("lossy tokenizer: bits per byte are too low") == is_lossy
        expected = {"unknown_token_fraction": unknown / 33, "changed_document_fraction": changed}
        details = json.loads(Path("data/evaluation/details.json").read_text())
        assert details.get("lossy_tokenizer") == (expected if is_lossy else None)


def test_34_one_window_can_be_evaluated(evaluate):
    status, out = evaluate([*range(32), END])
    assert status == 0 and "lossy" not in out
    details = json.loads(Path("data/evaluation/details.json").read_text(), parse_constant=pytest.fail)
    assert details["nats_per_token"] > 0 and details["clean"]["documents"] == 1
    assert json.loads(Path("metrics/eval.json").read_text())["bits_per_byte"] == details["bits_per_byte"]
    assert {path.name for path in Path("data/evaluation").iterdir()} == {
        "details.json", "document_losses.parquet", "samples.json", "samples.md",
    }  # fmt: skip
