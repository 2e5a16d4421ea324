"""Tokenizing in ranks gives the bytes of one process; a finished rank is reused only for the same inputs."""

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenize_split
from extras.tokenize_cluster import ranks as cluster_ranks
from extras.tokenize_cluster import tokenize_cluster
from extras.tokenize_cluster.ranks import join_ranks, plan_ranks, tokenize_rank
from lm.core.errors import DataError, IntegrityError
from lm.core.files import read_json, write_json
from lm.text.parquet import describe_split, write_documents
from lm.text.slices import Slice
from lm.tokenizer.build import train_ranks, write_byte_level
from lm.tokenizer.engine import Engine
from lm.tokens.tokenfile import open_tokens
from support.refusal import refused
from support.selections import dropping, make_selection
from support.texts import make_texts
from support.train_cases import wait_for

needs_datatrove = pytest.mark.skipif(
    importlib.util.find_spec("datatrove") is None, reason="datatrove is not installed: requirements/cluster.txt"
)
OUT = Path("data/processed_datasets/train.bin")
TEXTS, WHOLE = make_texts(), Slice("text", 0, None)
FILES = (TEXTS[:40], TEXTS[40:45], ["", ""], TEXTS[45:200], TEXTS[200:])


def describe_raw() -> None:
    """Write the manifest of data/raw."""
    split = describe_split(Path("data/raw"), "text", "text")
    write_json(Path("data/raw/manifest.json"), {"source": "test", "column": "text", "splits": {"text": split}})
    make_selection("data/selection", "data/raw")


def set_slice(start_char: int, num_chars: int | None) -> None:
    """Set the training slice; validation is in another split."""
    slices = {"train": {"split": "text", "start_char": start_char, "num_chars": num_chars}}
    slices["validation"] = {"split": "other", "start_char": 0, "num_chars": None}
    write_json("params.yaml", {"data": {"source": "test"}})
    write_json("presets.yaml", {"sources": {"test": slices}})


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number, texts in enumerate(FILES):
            write_documents(Path(f"data/raw/text/{number:04d}.parquet"), texts)
        describe_raw()
        Path("data/tokenizer").mkdir()
        write_byte_level(Path("data/tokenizer"), train_ranks([TEXTS], 300), "bpe")
        Path("runtime.yaml").write_text("tokenize: {num_processes: 1, chunk_chars: 3000}\n")
        set_slice(0, None)
    return folder


@pytest.fixture(autouse=True)
def project(template, tmp_path, monkeypatch):
    """A copy of the template as the working directory."""
    shutil.copytree(template, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")


def plan(text_slice=WHOLE, num_ranks=3, chunk_chars=1000):
    inputs = (Path("data", name) for name in ("raw", "selection", "tokenizer"))
    return plan_ranks(*inputs, text_slice, Path("ranks"), chunk_chars, num_ranks)


def run(job) -> list[int]:
    """Tokenize the unfinished ranks; return their numbers."""
    unfinished = job.unfinished()
    for rank in unfinished:
        tokenize_rank(job, rank)
    return [rank.number for rank in unfinished]


def assert_same_as_one_process(sharded: dict) -> None:
    """Check that OUT and its sidecar equal those of the stage, apart from the list of shards."""
    folders = ["--raw", "data/raw", "--selection", "data/selection", "--tokenizer", "data/tokenizer"]
    assert tokenize_split.main(["--split", "train", *folders, "--tokens", "single.bin"]) == 0
    shards = sharded.pop("shards")
    assert sharded == read_json("single.json")
    assert b"".join((OUT / shard["path"]).read_bytes() for shard in shards) == Path("single.bin").read_bytes()
    assert open_tokens(OUT).ids[:].tobytes() == Path("single.bin").read_bytes()


TOTAL = sum(map(len, TEXTS))
FIRST = sum(map(len, FILES[0]))


@pytest.mark.parametrize(
    ("start_char", "num_chars"),
    [(0, None), (0, FIRST), (0, FIRST + 1), (FIRST, None), (FIRST - 1, 2), (FIRST // 2, TOTAL // 2), (TOTAL // 2, None),
     (0, TOTAL), (TOTAL - len(TEXTS[-1]), None)],
)  # fmt: skip
@pytest.mark.parametrize("num_ranks", [1, 3, 100])
def test_ranks_give_the_bytes_of_one_process(start_char, num_chars, num_ranks):
    set_slice(start_char, num_chars)
    job = plan(Slice("text", start_char, num_chars), num_ranks)
    assert len(job.ranks) <= min(num_ranks, len(FILES))
    run(job)
    assert_same_as_one_process(join_ranks(job, OUT))


def test_ranks_leave_out_the_documents_that_the_stage_leaves_out():
    numbers = {("test", "text"): [0, 7, 39, *range(40, 45), 50, len(TEXTS) - 1]}  # of the second file nothing is left
    make_selection("data/selection", "data/raw", dropping(numbers))
    run(job := plan(num_ranks=100))
    assert_same_as_one_process(join_ranks(job, OUT))


def test_every_file_goes_to_one_rank_in_order_and_ranks_are_about_equal():
    entries = read_json("data/raw/manifest.json")["splits"]["text"]["files"]
    for num_ranks in range(1, 7):
        ranks = plan(num_ranks=num_ranks).ranks
        assert [entry for rank in ranks for entry in rank.files] == entries
        assert [rank.number for rank in ranks] == list(range(len(ranks)))
    files = [cluster_ranks.Placed({"bytes": 100})] * 64
    assert [len(group) for group in cluster_ranks._groups(files, 8)] == [8] * 8


def test_a_slice_without_documents_and_one_after_the_end_are_refused():
    longest = max(range(len(TEXTS)), key=lambda i: len(TEXTS[i]))
    begin = sum(map(len, TEXTS[:longest]))
    job = plan(Slice("text", begin + 1, 3))
    run(job)
    with pytest.raises(DataError, match=f"no document of split 'text' begins in characters {begin + 1} to {begin + 4}"):
        join_ranks(job, OUT)
    with pytest.raises(DataError, match="start_char is"):
        plan(Slice("text", TOTAL, None))
    assert not OUT.exists()


def replace_file(number: int) -> None:
    """Write other text of the same size, so that the files are divided among the ranks as before."""
    write_documents(Path(f"data/raw/text/{number:04d}.parquet"), FILES[number][::-1])
    describe_raw()


def other_tokenizer() -> None:
    shutil.rmtree("data/tokenizer")
    Path("data/tokenizer").mkdir()
    write_byte_level(Path("data/tokenizer"), train_ranks([TEXTS], 299), "bpe")


def truncate(number: int) -> None:
    path = Path(f"ranks/rank-{number:05d}.bin")
    os.truncate(path, path.stat().st_size - 2)


def other_versions(name: str) -> list:
    return [SimpleNamespace(version="9.9")]


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda patch: None, []),
        (lambda patch: replace_file(3), [3]),
        (lambda patch: other_tokenizer(), [0, 1, 2, 3, 4]),
        (lambda patch: patch.setattr(cluster_ranks, "distributions", other_versions), [0, 1, 2, 3, 4]),
        (lambda patch: patch.setattr(cluster_ranks, "CODE", ("lm/core/errors.py",)), [0, 1, 2, 3, 4]),
        (lambda patch: truncate(1), [1]),
        (lambda patch: Path("ranks/rank-00004.bin").unlink(), [4]),
        (lambda patch: Path("ranks/rank-00000.json").write_text("{"), [0]),
    ],
)
def test_a_restart_repeats_only_what_has_changed(monkeypatch, change, again):
    run(plan(num_ranks=100))
    change(monkeypatch)
    job = plan(num_ranks=100, chunk_chars=777)  # which changes no byte
    times = {rank.number: job.path(rank).stat().st_mtime_ns for rank in job.ranks if rank.number not in again}
    assert run(job) == again
    assert {number: job.path(job.ranks[number]).stat().st_mtime_ns for number in times} == times
    assert_same_as_one_process(join_ranks(job, OUT))


def test_another_slice_repeats_only_the_ranks_that_it_cuts():
    run(plan(num_ranks=100))
    assert run(plan(Slice("text", 5, None), num_ranks=100)) == [0]


def test_a_rank_killed_before_the_rename_is_unfinished(monkeypatch):
    """Its sidecar is written first, and an old file from other code may have the same length."""
    job = plan()
    run(job)
    monkeypatch.setattr(cluster_ranks, "distributions", other_versions)

    def killed(old, new):
        if str(new).endswith(".bin"):
            raise KeyboardInterrupt
        os.rename(old, new)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("lm.core.files.os.replace", killed)
        tokenize_rank(job, job.ranks[1])
    assert run(job) == [0, 1, 2]


def test_text_that_differs_from_the_manifest_is_not_tokenized():
    job = plan(num_ranks=100)
    write_documents(Path("data/raw/text/0001.parquet"), ["something else"])
    with pytest.raises(IntegrityError, match=r"0001\.parquet: sha256 is .*, the manifest says"):
        run(job)
    assert [rank.number for rank in job.unfinished()] == [1, 2, 3, 4]


def test_a_rank_with_changed_bytes_is_not_joined():
    job = plan()
    run(job)
    content = bytearray(job.path(job.ranks[2]).read_bytes())
    content[7] ^= 1
    job.path(job.ranks[2]).write_bytes(content)
    with pytest.raises(IntegrityError, match=r"rank-00002\.bin: sha256 is .* remove it, and run the same command"):
        join_ranks(job, OUT)
    assert not OUT.exists()


def test_a_rank_in_which_gigatoken_differs_is_repeated_with_tiktoken(monkeypatch, capsys):
    encode, job = Engine.encode_fast, plan()
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "encode_fast", lambda self, texts: encode(self, texts)[::-1])
        run(job)
    assert "rank-00002.bin again with tiktoken alone" in capsys.readouterr().err
    assert_same_as_one_process(join_ranks(job, OUT))


def test_the_surprisal_of_the_texts_is_added_up():
    for number in range(3):
        path = Path(f"data/raw/text/{number:04d}.parquet")
        write_documents(path, TEXTS[number * 9 : number * 9 + 9], surprisal_bits=[0.5 + number] * 9)
    for number in (3, 4):
        Path(f"data/raw/text/{number:04d}.parquet").unlink()
    describe_raw()
    write_json("data/raw/manifest.json", {**read_json("data/raw/manifest.json"), "entropy": "known"})
    make_selection("data/selection", "data/raw")
    job = plan()
    run(job)
    assert join_ranks(job, OUT)["surprisal_bits"] == 9 * (0.5 + 1.5 + 2.5)


def test_a_damaged_parquet_file_is_not_an_empty_rank():
    Path("data/raw/text/0002.parquet").write_bytes(b"PAR1 and no more")
    manifest = read_json("data/raw/manifest.json")
    entry = manifest["splits"]["text"]["files"][2]
    entry["sha256"] = cluster_ranks.sha256_file("data/raw/text/0002.parquet")
    write_json("data/raw/manifest.json", manifest)
    make_selection("data/selection", "data/raw")
    with pytest.raises(DataError, match="not a whole parquet file"):
        run(plan(num_ranks=100))


# ---------------------------------------------------------------- under datatrove's executors


def run_tool(*arguments: str, code: int = 0) -> subprocess.CompletedProcess:
    """Run the tool in a new process, because datatrove's log keeps the first stderr that it sees."""
    command = [sys.executable, tokenize_cluster.SRC, "tokenize_cluster", "train", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def rank_times() -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in sorted(Path("ranks/train").glob("rank-*.bin"))}


@needs_datatrove
def test_two_local_workers_give_the_bytes_of_one_process_and_repeat_nothing():
    assert "5 of 5 ranks to tokenize" in run_tool("--ranks", "100", "--workers", "2").stdout
    assert_same_as_one_process(read_json(OUT.with_suffix(".json")))
    before = rank_times()
    replace_file(4)
    done = run_tool("--ranks", "100", "--workers", "2")
    assert "1 of 5 ranks to tokenize" in done.stdout and "`dvc commit -f tokenize_train`" in done.stdout
    after = rank_times()
    assert [name for name in after if after[name] != before[name]] == ["rank-00004.bin"]
    assert_same_as_one_process(read_json(OUT.with_suffix(".json")))


@needs_datatrove
def test_a_failing_rank_ends_the_tool_with_its_sentence_and_keeps_the_others():
    write_documents(Path("data/raw/text/0004.parquet"), ["something else"])
    last = run_tool("--ranks", "100", "--workers", "1", code=4).stderr.strip().splitlines()[-1]
    assert re.match(r"error: .*0004\.parquet: sha256 is .*, the manifest says", last)
    assert len(rank_times()) == 4 and not OUT.exists()
    write_documents(Path("data/raw/text/0004.parquet"), FILES[4])
    assert "1 of 5 ranks to tokenize" in run_tool("--ranks", "100", "--workers", "1").stdout


SLURM = ["--ranks", "2", "--executor", "slurm", "--workers", "1", "--option=time=1:00:00", "--option=partition=cpu"]


@needs_datatrove
def test_the_options_are_in_the_job_that_is_submitted_to_slurm(tmp_path, monkeypatch):
    """An `sbatch` that accepts every job is enough here."""
    (tmp_path / "sbatch").write_text("#!/bin/bash\necho Submitted batch job 7\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    printed = run_tool(*SLURM, "--option=sbatch_args.account=mine").stdout
    assert "2 ranks are submitted; when they have finished, the same command joins them" in printed
    assert not OUT.exists()
    (script,) = Path("ranks/train/logs").glob("*/launch_script.slurm")
    lines = script.read_text().splitlines()
    for line in ("partition=cpu", "time=1:00:00", "account=mine", "array=0-1%1", "job-name=tokenize"):
        assert f"#SBATCH --{line}" in lines
    assert any(line.startswith("export PATH=") and f" PYTHONPATH={tokenize_cluster.SRC}:" in line for line in lines)


@pytest.mark.slow
@needs_datatrove
def test_the_ranks_run_on_a_real_slurm_and_the_same_command_joins(slurm, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without this Python
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    run_tool(*SLURM)
    wait_for(lambda: slurm.run("squeue", "-h") == "", 120)
    assert "0 of 2 ranks to tokenize" in run_tool(*SLURM).stdout
    assert_same_as_one_process(read_json(OUT.with_suffix(".json")))


@needs_datatrove
def test_rays_executor_gets_its_options(monkeypatch):
    """Ray itself does not run here."""
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    job = plan()
    executor = tokenize_cluster.make_executor(job, "ray", 2, tokenize_cluster.read_options(["mem_per_cpu_gb=3"]))
    assert (executor.tasks, executor.workers, executor.mem_per_cpu_gb) == (len(job.ranks), 2, 3)
    assert executor.pipeline == [job] and not executor.skip_completed
    assert executor.ray_remote_kwargs["runtime_env"]["env_vars"] == {"PYTHONPATH": f"{tokenize_cluster.SRC}:/theirs"}


def tool(*arguments: str) -> int:
    return tokenize_cluster.main(["train", *arguments])


@pytest.mark.parametrize(
    ("arguments", "code", "sentences"),
    [
        (["--ranks", "0"], 2, ["--ranks is 0, needed: at least 1"]),
        (["--ranks", "2", "--workers", "-1"], 2, ["--workers is -1"]),
        (["--ranks", "2", "--option", "time"], 2, ["--option is 'time', needed: NAME=VALUE"]),
        (["--ranks", "2", "--option", "nope=1"], 2, ["--executor local: ", "nope"]),
        (["--ranks", "2", "--executor", "slurm"], 2, ["--executor slurm: ", "time", "--option NAME=VALUE"]),
    ],
)
@needs_datatrove
def test_wrong_arguments_are_refused_in_one_sentence(capfd, arguments, code, sentences):
    refused(tool(*arguments), capfd.readouterr().err, code, *sentences)


@pytest.mark.parametrize(("kind", "package"), [("local", "datatrove"), ("slurm", "datatrove"), ("ray", "ray")])
def test_without_the_extra_packages_the_tool_names_what_to_install(monkeypatch, capfd, kind, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    status = tool("--ranks", "2", "--executor", kind)
    refused(status, capfd.readouterr().err, 5, f"{package} is not installed", "requirements/cluster.txt")


def test_overlapping_slices_are_refused_as_in_the_stage(capfd):
    presets = read_json("presets.yaml")
    presets["sources"]["test"]["validation"]["split"] = "text"
    write_json("presets.yaml", presets)
    status = tokenize_cluster.main(["validation", "--ranks", "2"])
    refused(status, capfd.readouterr().err, 2, "train and validation share characters")


def test_large_strings_are_read_as_in_the_stage():
    table = pa.table({"text": pa.array(TEXTS[:30], pa.large_string())})
    pq.write_table(table, "data/raw/text/0001.parquet")
    describe_raw()
    job = plan(Slice("text", FIRST + 3, None), num_ranks=100)
    set_slice(FIRST + 3, None)
    run(job)
    assert_same_as_one_process(join_ranks(job, OUT))
    assert json.loads(Path("ranks/rank-00000.json").read_text())["origin"]["slice"]["start_char"] == 3
    assert dataclasses.asdict(job.slice) == read_json("single.json")["slice"]
