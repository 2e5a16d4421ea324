"""Two tables: every stage of the data × every moment of a kill, and every input × every damage.

Numbers 17, 18 and 20 of the catalogue, with what 21 and 35 say of kills and damages. `train` has its own in
test_25_26_checkpoints.py; `make torture` adds power cuts, failing calls and the other stages.
"""

import shutil
import signal
from pathlib import Path

import pytest

import audit
import fetch
import make_tokenizer
import tokenize_split
from support.damage import DAMAGES
from support.refusal import files_below, refused
from support.tokenize_cases import ALL, AUDIT, FETCH, LOCAL, TEXT, arguments, make_project, write_params
from support.train_cases import die_at_any, limit_files, run_stage

TEXTS = [f"document {i}: {i * 7919} and {i * 104729}.\n" for i in range(60)]
STAGES = {  # in their order: the module, its arguments, and what it writes
    "fetch": (fetch, FETCH, ["raw"]),
    "make_tokenizer": (make_tokenizer, [*TEXT, "--tokenizer", "made"], ["made"]),
    "tokenize_train": (tokenize_split, arguments("train"), ["out/train.bin", "out/train.json"]),
    "tokenize_val": (tokenize_split, arguments("validation"), ["out/validation.bin", "out/validation.json"]),
    "audit": (audit, AUDIT, ["audit", "metrics"]),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder in which all stages of the data have run, on the vocabulary of bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("made"))
        make_project()
        Path("texts").mkdir()
        for i, text in enumerate(TEXTS):
            Path(f"texts/{i:02d}.txt").write_text(text)
        length = sum(map(len, TEXTS[:40]))
        write_params(ALL | {"num_chars": length}, ALL | {"start_char": length}, fetch=LOCAL)
        for module, options, _ in STAGES.values():
            assert module.main(options) == 0
        return Path.cwd()


@pytest.fixture
def project(made, tmp_path, monkeypatch):
    """The working directory: a copy of `made`."""
    shutil.copytree(made, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")


def outputs_of(stage: str) -> dict[str, bytes]:
    """Return path → content of what is there of a stage's outputs, without temporary files."""
    names, found = STAGES[stage][2], files_below(Path())
    return {path: found[path] for path in found if path.startswith(tuple(names)) and not path.endswith(".tmp")}


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "tokenize_val"])
def test_18_killed_before_any_fsync_or_rename(project, stage):
    """Each output is whole or missing, the last rename makes the main one appear, and a rerun gives the same bytes."""
    module, options, names = STAGES[stage]
    whole, files, survived = outputs_of(stage), files_below(Path()).keys(), []
    for step in range(1, 60):
        for name in names:
            shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink(missing_ok=True)
        ended = run_stage(die_at_any, step, module=module.__name__, argv=options)
        survived.append(Path(names[0]).exists())
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL
        assert outputs_of(stage).items() <= whole.items()
    assert survived == sorted(survived) and len(survived) > 3 and not survived[0]
    assert outputs_of(stage) == whole
    assert files_below(Path()).keys() == files, "temporary files of the killed processes are removed"


def test_17_a_failed_write_keeps_the_old_output(project):
    before = files_below(Path())
    for i, text in enumerate(TEXTS):
        Path(f"texts/{i:02d}.txt").write_text(text * 100)
    for stage in ("fetch", "tokenize_train"):
        module, options, names = STAGES[stage]
        ended = run_stage(limit_files, 500, module=module.__name__, argv=options)
        refused(ended.code, ended.err, 5, f"{names[0]}", ": File too large", "run the same command again")
        assert outputs_of(stage) == {path: before[path] for path in outputs_of(stage)}
        assert files_below(Path()).keys() == before.keys()
        assert module.main(options) == 0
        assert outputs_of(stage).keys() == {path for path in before if path.startswith(tuple(names))}


INPUTS = {  # → the stage that reads it first
    "raw/text.parquet": "tokenize_train", "raw/manifest.json": "make_tokenizer",
    "tokenizer/meta.json": "tokenize_train",
    "tokenizer/ranks.tiktoken": "tokenize_train", "tokenizer/tokenizer.json": "tokenize_train",
    "tokenizer/tokenizer_config.json": "audit", "out/train.bin": "audit", "out/train.json": "audit",
    "out/validation.bin": "audit",
}  # fmt: skip


@pytest.mark.parametrize("name", INPUTS)
def test_20_a_damaged_input_is_refused_and_kept(project, capsys, name):
    """A bit of JSON may give other JSON, which the records that hold its hash disagree with: test_verify.py."""
    path, (module, options, outputs) = Path(name), STAGES[INPUTS[name]]
    good = path.read_bytes()
    for output in outputs:
        shutil.rmtree(output) if Path(output).is_dir() else Path(output).unlink()
    for damage in DAMAGES:
        if damage == "a flipped bit" and path.suffix == ".json" and path.parent.name != "tokenizer":
            continue
        DAMAGES[damage](path)
        damaged = path.read_bytes() if path.exists() else None
        status = module.main(options)
        last = refused(status, capsys.readouterr().err, 4, f"{path.parent}")
        assert path.name in last or path.with_suffix(".bin").name in last, (damage, last)
        assert not Path(outputs[0]).exists() and (path.read_bytes() if path.exists() else None) == damaged
        path.write_bytes(good)
    assert module.main(options) == 0
