"""`python src verdict`: identical bits, other bits, another run, and no run to compare with."""

import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from lm.core.files import read_json, write_json, write_text
from lm.core.params import read_yaml
from support.json_documents import check_document, documented, read_document
from support.refusal import refused
from support.workspace import Workspace
from tools import verdict
from tools.common.lock import md5_of

LOOK = ["  python src generate 'One old'  # let the model write", "  python src report  "]
COMPARE = "  python src compare HEAD workspace  # "


@pytest.fixture
def committed(finished, tmp_path, monkeypatch) -> Workspace:
    """The small pipeline after its run, all of it committed, as the working directory."""
    workspace = Workspace(tmp_path / "ws", finished)
    workspace.commit()
    monkeypatch.chdir(workspace.folder)
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    return workspace


def said(capsys) -> list[str]:
    """Run the command and return the lines that it prints."""
    capsys.readouterr()
    assert verdict.main([]) == 0
    return capsys.readouterr().out.splitlines()


def change_lock(change) -> None:
    """Change the content of dvc.lock."""
    lock = read_yaml("dvc.lock")
    change(lock["stages"])
    write_text("dvc.lock", yaml.safe_dump(lock))


def give_other_outputs(stages: dict) -> None:
    """Give the outputs of train and eval other hashes, also where they are inputs of later stages."""
    made = {out["path"] for name in ("train", "eval") for out in stages[name]["outs"]}
    for stage in stages.values():
        for entry in [*stage["deps"], *stage["outs"]]:
            if entry["path"] in made:
                entry["md5"] = "0" * 32


def give_other_code(stages: dict) -> None:
    """Give the code of train another hash."""
    (code,) = (dep for dep in stages["train"]["deps"] if dep["path"] == "src/train.py")
    code["md5"] = "0" * 32


def raise_loss() -> tuple[float, float]:
    """Write another loss into the metrics; return the former and the new one."""
    metrics = read_json("metrics/eval.json")
    loss = metrics["bits_per_byte"]
    write_json("metrics/eval.json", metrics | {"bits_per_byte": loss + 0.125})
    return loss, loss + 0.125


def test_equal_bits(committed, capsys):
    lines = said(capsys)
    metrics = read_json("metrics/eval.json")
    documents = read_json("data/evaluation/details.json")["documents"]
    assert lines[:3] == [
        "Bitwise identical to the committed run (all 19 outputs).",
        f"{metrics['bits_per_byte']:.3f} bits per byte (± {metrics['bpb_se']:.3f} over {documents} documents)",
        "next:",
    ]
    assert len(lines) == 5 and all(line.startswith(start) for line, start in zip(lines[3:], LOOK, strict=True))


def document(capsys) -> dict:
    """Run the command with --json and return what it prints."""
    capsys.readouterr()
    assert verdict.main(["--json"]) == 0
    output, errors = capsys.readouterr()
    assert errors == ""
    found = read_document(output)
    check_document(found)
    return found


def test_equal_bits_as_json(committed, capsys):
    metrics = read_json("metrics/eval.json")

    found = document(capsys)

    documents = read_json("data/evaluation/details.json")["documents"]
    assert found["identical"] is True and found["num_outputs"] == 19
    assert found["score"] == {
        "bits_per_byte": metrics["bits_per_byte"],
        "standard_error": metrics["bpb_se"],
        "documents": documents,
    }
    assert found["outputs"] == found["parameters"] == found["inputs"] == found["metrics"] == found["caveats"] == []
    assert [each["command"] for each in found["next"]] == ["python src generate 'One old'", "python src report"]


GPU = {"gpu": "NVIDIA H100"}


def name_gpu(segments_of) -> None:
    """Let model.json have other segments, and dvc.lock its hash."""
    record = read_json("data/models/model.json")
    write_json("data/models/model.json", record | {"segments": segments_of(record["segments"][0])})
    md5 = md5_of(Path("data/models"))

    def change(stages):
        stages["train"]["outs"][0]["md5"] = md5
        for dep in stages["eval"]["deps"]:
            if dep["path"] == "data/models":
                dep["md5"] = md5

    change_lock(change)


@pytest.mark.parametrize(
    "segments_of",
    [
        lambda cpu: [cpu | GPU],
        lambda cpu: [cpu, cpu | GPU | {"from_step": 5}],
        lambda cpu: [cpu | GPU, cpu | {"from_step": 5}, cpu | GPU | {"from_step": 9}],
    ],
)
def test_equal_bits_on_a_gpu_are_identical(committed, capsys, segments_of):
    name_gpu(segments_of)

    assert said(capsys)[0] == "Bitwise identical to the committed run (all 19 outputs), computed on NVIDIA H100."


@pytest.mark.parametrize("change", [{"torch": "0.0"}, {"numerics": "fast"}])
def test_a_model_that_differs_in_more_than_its_gpu_is_not_identical(committed, capsys, change):
    name_gpu(lambda cpu: [cpu | GPU | change])

    assert said(capsys)[0].startswith("Not bitwise identical to the committed run: 1 of 19 outputs differ")


def test_another_run_as_json(committed, capsys):
    def change(stages):
        give_other_outputs(stages)
        give_other_code(stages)
        stages["train"]["params"]["params.yaml"]["train"]["peak_lr"] = 0.5

    change_lock(change)
    before, now = raise_loss()

    found = document(capsys)

    assert found["identical"] is False and len(found["outputs"]) == 7
    assert found["parameters"] == [{"name": "train.peak_lr", "committed": 0.01, "now": 0.5}]
    assert found["inputs"] == ["src/train.py"] and found["changed_code"] == ["src/train.py"]
    assert {"name": "bits_per_byte", "committed": before, "now": now} in found["metrics"]
    assert found["score"]["bits_per_byte"] == now
    assert any("The results are of the former code." in caveat for caveat in found["caveats"])
    covered = check_document(found)
    assert covered == documented(verdict.SCHEMA).keys()


def test_a_stage_that_dvc_yaml_no_longer_has_does_not_count(committed, capsys):
    """DVC leaves it in dvc.lock."""
    change_lock(lambda stages: stages.update(gone={"outs": [{"path": "data/gone", "md5": "0" * 32}]}))
    committed.commit("with a stage that is gone")
    assert said(capsys)[0] == "Bitwise identical to the committed run (all 19 outputs)."


def test_equal_bits_of_other_code(committed, capsys):
    """The check of a change that must not change results."""
    change_lock(give_other_code)
    first, second, *_ = said(capsys)
    assert first.endswith("(all 19 outputs), although 1 of its inputs (code, packages or text) changed.")
    assert second == "  src/train.py"


@pytest.mark.parametrize(
    ("numerics", "why", "following"),
    [
        ("exact", "other bits", ["make prove", "python src compare HEAD workspace"]),
        ("fast", "equal bits on one machine only", ["python src compare HEAD workspace", "python src report"]),
    ],
)
def test_other_bits_of_the_same_code_and_parameters(committed, capsys, numerics, why, following):
    change_lock(lambda stages: stages["train"]["params"]["params.yaml"]["train"].update(numerics=numerics))
    committed.commit("numerics")
    change_lock(give_other_outputs)
    before, now = raise_loss()
    lines = said(capsys)
    differ = "7 of 19 outputs differ, although code and parameters are the same."
    assert lines[0] == f"Not bitwise identical to the committed run: {differ}"
    assert f"  bits_per_byte  {before:.5g} -> {now:.5g}" in lines
    (explained,) = (line for line in lines if "docs/reproducibility.md" in line)
    assert why in explained
    assert [line.partition("#")[0].strip() for line in lines[-2:]] == following


def test_other_bits_without_another_metric_name_the_outputs(committed, capsys):
    change_lock(give_other_outputs)
    lines = said(capsys)
    assert "No metric differs. Outputs that differ:" in lines and "  data/models" in lines


def test_another_run_is_not_taken_for_other_bits(committed, capsys):
    """Of the same parameter in a preset of another name, and of a parameter of the user's."""

    def change(stages):
        give_other_outputs(stages)
        stages["train"]["params"]["params.yaml"]["train"]["peak_lr"] = 0.5
        models = stages["train"]["params"]["presets.yaml"]
        models["models.other"] = models.pop("models.micro") | {"d_ff": 64}
        stages["train"]["params"]["params.yaml"]["model.name"] = "other"

    change_lock(change)
    before, now = raise_loss()
    lines = said(capsys)
    assert lines[0] == "Another run than the committed one: 3 of its parameters changed; 7 of 19 outputs differ."
    rows = [line.split() for line in lines[2:5]]
    assert ["train.peak_lr", "0.01", "->", "0.5"] in rows and ["model.name", "micro", "->", "other"] in rows
    assert ["models.*.d_ff", "32", "->", "64"] in rows
    assert f"  bits_per_byte  {before:.5g} -> {now:.5g}" in lines
    assert not any("reproducibility" in line for line in lines)
    assert lines[-2].startswith(COMPARE) and lines[-1].startswith("  make back  ")

    # On other text, `compare` would reject the two.
    change_lock(lambda stages: stages["fetch"]["outs"][0].update(md5="0" * 32))
    lines = said(capsys)
    assert lines[-2].startswith(LOOK[1]) and lines[-1].startswith("  make back  ")


@pytest.mark.parametrize("seed", [1, 2])
def test_other_code_is_another_run(committed, capsys, seed):
    """With a parameter that changed too, or alone."""

    def change(stages):
        give_other_outputs(stages)
        give_other_code(stages)
        stages["train"]["params"]["params.yaml"]["train"]["seed"] = seed

    change_lock(change)
    lines = said(capsys)
    causes = "1 of its inputs (code, packages or text) changed"
    if seed != 1:
        causes = f"1 of its parameters and {causes}"
    assert lines[0] == f"Another run than the committed one: {causes}; 7 of 19 outputs differ."
    assert "  src/train.py" in lines
    assert not any("reproducibility" in line for line in lines)
    assert lines[-2].startswith(COMPARE) and lines[-1].startswith("  make back  ")


def test_an_output_that_was_renamed_is_a_changed_input(committed, capsys):
    """As in dvc.yaml, which is not committed yet."""

    def rename(stages):
        for stage in stages.values():
            for entry in [*stage["deps"], *stage["outs"]]:
                if entry["path"] == "data/models":
                    entry["path"] = "data/former"

    now = Path("dvc.lock").read_text()
    change_lock(rename)
    committed.commit("with the former name")
    Path("dvc.lock").write_text(now)
    lines = said(capsys)
    causes = "1 of its inputs (code, packages or text) changed"
    assert lines[0] == f"Another run than the committed one: {causes}; 2 of 20 outputs differ."
    assert "  data/former" in lines


@pytest.mark.parametrize(
    ("value", "text"),
    [(1843200, "1,843,200"), (0.0123456, "0.012346"), (1.0, "1"), (True, "True"), (None, "None"), ([1000], "[1000]")],
)
def test_a_number_of_a_list_has_five_digits_or_is_whole(value, text):
    assert verdict.readable(value) == text


def test_a_long_list_ends_with_how_many_more_there_are():
    names = [f"name {number}" for number in range(14)]
    assert verdict.listed(names[:12]) == [f"  {name}" for name in names[:12]]
    assert verdict.listed(names[:13])[12:] == ["  and 1 more"]
    assert verdict.listed(names)[12:] == ["  and 2 more"]


def test_a_prompt_is_quoted_for_the_shell(committed, capsys):
    prompt = 'It\'s "$1"'
    content = read_yaml("sources.yaml")
    content["sources"]["small"]["prompts"] = ["", f"{prompt}\n"]
    write_text("sources.yaml", yaml.safe_dump(content))
    command = said(capsys)[-2].partition("  #")[0]
    assert shlex.split(command) == ["python", "src", "generate", prompt]


def test_code_that_changed_since_the_run_is_named(committed, capsys):
    """As after `make back`, which leaves the code of an experiment."""
    with open("src/lm/model/gemma3.py", "a") as file:
        file.write("# changed\n")
    write_text("src/lm/model/new.py", "")

    lines = said(capsys)

    assert lines[0] == "Bitwise identical to the committed run (all 19 outputs)."
    start = lines.index("Code that changed since this run:")
    assert lines[start + 1 : start + 3] == ["  src/lm/model/gemma3.py", "  src/lm/model/new.py"]
    assert "`dvc repro`" in lines[start + 3] and "`git restore src`" in lines[start + 3]


def test_the_code_of_the_run_is_not_called_changed(committed, capsys):
    (committed.folder / "src/lm/model/__pycache__").mkdir(exist_ok=True)
    write_text("src/lm/model/__pycache__/gemma3.pyc", "compiled")
    assert not any("changed since" in line for line in said(capsys))


def test_a_score_of_a_former_run_is_not_printed(committed, capsys):
    """As after `dvc repro audit` on other text."""

    def change(stages):
        for name in ("fetch", "make_tokenizer", "tokenize_train", "tokenize_val", "audit"):
            for entry in [*stages[name]["deps"], *stages[name]["outs"]]:
                if entry["path"].startswith("data/"):
                    entry["md5"] = "0" * 32

    change_lock(change)
    lines = said(capsys)
    assert "Not scored: train, eval, plot did not run on the present inputs yet; run `dvc repro`." in lines
    assert not any("bits per byte" in line for line in lines)


def test_weights_that_were_not_trained_here_are_said_to_come_from_the_cache(committed, capsys):
    assert not any("cache" in line for line in said(capsys))
    shutil.rmtree(".runs")
    lines = said(capsys)
    assert "so they came from DVC's cache" in lines[1] and "python src verify --retrain" in lines[2]


def test_conflicts_of_a_merge_are_named_with_the_commands_that_end_them(committed, capsys):
    lock = Path("dvc.lock").read_text()
    write_text("dvc.lock", f"<<<<<<< HEAD\n{lock}=======\n{lock}>>>>>>> other\n")
    sentence = refused(verdict.main([]), capsys.readouterr().err, 4, "dvc.lock: a merge left conflicts in it")
    assert "`git checkout --ours dvc.lock metrics plots && dvc repro`" in sentence


def test_a_repository_that_git_refuses_is_not_called_empty(committed, capsys, monkeypatch):
    """Git tests the owner of the folder as this variable says."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    lines = said(capsys)
    assert lines[0].startswith("Not compared: 'git show HEAD:./dvc.lock' failed: ")
    assert f"git config --global --add safe.directory {committed.folder}" in lines[0]
    assert "bits per byte" in lines[1]


def test_without_git_or_a_committed_run_nothing_is_compared(committed, capsys):
    committed.run("git", "rm", "-q", "--cached", "dvc.lock")
    committed.run("git", "commit", "-q", "-m", "no dvc.lock")
    for _ in range(2):
        lines = said(capsys)
        assert lines[0] == "Not compared: this folder has no commit with a dvc.lock."
        assert "bits per byte" in lines[1] and lines[-1].startswith(LOOK[1])
        shutil.rmtree(".git", ignore_errors=True)


def test_a_run_that_is_not_whole_has_no_verdict(committed, capsys):
    shutil.rmtree("data/models")
    refused(verdict.main([]), capsys.readouterr().err, 4, "data/models: missing", "run `dvc repro` first")
    Path("dvc.lock").unlink()
    refused(verdict.main([]), capsys.readouterr().err, 4, "dvc.lock: missing; run `dvc repro` first")


def test_the_environment_is_activated_where_it_is_not(committed, capsys, monkeypatch):
    monkeypatch.delenv("VIRTUAL_ENV")
    environment = committed.folder / ".venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "activate").touch()
    monkeypatch.setattr("sys.prefix", str(environment))
    assert "  source .venv/bin/activate" in said(capsys)
