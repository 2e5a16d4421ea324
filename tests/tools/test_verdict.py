"""`python src verdict`: identical bits, other bits, another run, and no run to compare with."""

import shlex
import shutil
from pathlib import Path

import pytest

from lm.core.files import read_json, write_json, write_text
from support.json_documents import check_document, documented, read_document
from support.lock_cases import change_lock, entries_of, other_code, record_outputs, remake, train_with
from support.refusal import refused
from tools import verdict
from tools.common.lock import md5_of

METRICS = "metrics/eval.json"
DETAILS = "data/evaluation/details.json"
IDENTICAL = "Bitwise identical to the committed run (all 19 outputs)"
# How a line with a command to go on with begins.
GENERATE = "  python src generate "
REPORT = "  python src report "
COMPARE = "  python src compare HEAD workspace "
BACK = "  make back "
PROVE = "  make prove "

pytestmark = pytest.mark.usefixtures("committed", "activated")


@pytest.fixture
def activated(monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")


def printed(capsys) -> list[str]:
    """Run the command and return the lines that it prints."""
    capsys.readouterr()
    assert verdict.main([]) == 0
    return capsys.readouterr().out.splitlines()


def document(capsys) -> dict:
    """Run the command with --json and return what it prints."""
    capsys.readouterr()
    assert verdict.main(["--json"]) == 0
    output, errors = capsys.readouterr()
    assert errors == ""
    found = read_document(output)
    check_document(found)
    return found


def assert_next(lines: list[str], *starts: str) -> None:
    """Check that the last lines are the commands that begin with `starts`."""
    last = lines[-len(starts) :]
    assert lines[-len(starts) - 1] == "next:"
    assert [line[: len(start)] for line, start in zip(last, starts, strict=True)] == list(starts)


def raise_loss() -> tuple[float, float]:
    """Write another loss into the metrics, as another run would; return the former and the new one."""
    before = read_json(METRICS)["bits_per_byte"]
    now = before + 0.125
    for path in (DETAILS, METRICS):
        content = read_json(path) | {"bits_per_byte": now}
        Path(path).unlink()  # it may be a link into the cache
        write_json(path, content)
    change_lock(record_outputs)
    return before, now


# Identical bits.


def test_equal_bits(capsys):
    lines = printed(capsys)
    found = document(capsys)

    metrics = read_json(METRICS)
    documents = read_json("data/evaluation/details.json")["documents"]
    score = f"{metrics['bits_per_byte']:.3f} bits per byte (± {metrics['bpb_se']:.3f} over {documents} documents)"
    assert lines[:2] == [f"{IDENTICAL}.", score]
    assert len(lines) == 5
    assert_next(lines, GENERATE + "'One old' ", REPORT)

    # A program reads the same.
    assert (found["identical"], found["num_outputs"]) == (True, 19)
    assert found["score"] == {
        "bits_per_byte": metrics["bits_per_byte"],
        "standard_error": metrics["bpb_se"],
        "documents": documents,
    }
    for name in ("outputs", "parameters", "inputs", "metrics", "caveats"):
        assert found[name] == [], name
    commands = [each["command"] for each in found["next"]]
    assert commands == ["python src generate 'One old'", "python src report"]


GPU = {"gpu": "NVIDIA H100"}


def change_segments(segments_of) -> None:
    """Let model.json have other segments, made from the one that it has, and dvc.lock its hash."""
    record = read_json("data/models/model.json")
    (segment,) = record["segments"]
    write_json("data/models/model.json", record | {"segments": segments_of(segment)})
    md5 = md5_of(Path("data/models"))

    def change(stages: dict) -> None:
        for entry in entries_of(stages):
            if entry["path"] == "data/models":
                entry["md5"] = md5

    change_lock(change)


@pytest.mark.parametrize(
    "segments_of",
    [
        pytest.param(lambda cpu: [cpu | GPU], id="all of it"),
        pytest.param(lambda cpu: [cpu, cpu | GPU | {"from_step": 5}], id="its end"),
        pytest.param(
            lambda cpu: [cpu | GPU, cpu | {"from_step": 5}, cpu | GPU | {"from_step": 9}],
            id="its beginning and end",
        ),
    ],
)
def test_equal_bits_on_a_gpu_are_identical(capsys, segments_of):
    change_segments(segments_of)

    assert printed(capsys)[0] == f"{IDENTICAL}, computed on NVIDIA H100."


@pytest.mark.parametrize("change", [{"torch": "0.0"}, {"numerics": "fast"}])
def test_a_model_that_differs_in_more_than_its_gpu_is_not_identical(capsys, change):
    change_segments(lambda cpu: [cpu | GPU | change])

    headline = printed(capsys)[0]

    assert headline.startswith("Not bitwise identical to the committed run")
    assert "1 of 19 outputs differ" in headline


def test_equal_bits_of_other_code(capsys):
    """The check of a change that must not change results."""
    change_lock(other_code)

    first, second, *_ = printed(capsys)

    assert first.startswith(f"{IDENTICAL}, although 1 of its inputs ")
    assert second == "  src/train.py"


# Other bits.


@pytest.mark.parametrize(
    ("numerics", "why", "following"),
    [
        ("exact", "other bits", [PROVE, COMPARE]),
        ("fast", "equal bits on one machine only", [COMPARE, REPORT]),
    ],
)
def test_other_bits_of_the_same_code_and_parameters(committed, capsys, numerics, why, following):
    change_lock(train_with(numerics=numerics))
    committed.change(**{"train.numerics": numerics})
    committed.commit("numerics")
    remake("train", "eval")
    before, now = raise_loss()

    lines = printed(capsys)

    assert lines[0].startswith("Not bitwise identical to the committed run: 7 of 19 outputs differ")
    assert f"  bits_per_byte  {before:.5g} -> {now:.5g}" in lines
    (explanation,) = [line for line in lines if "docs/reproducibility.md" in line]
    assert why in explanation
    assert_next(lines, *following)


def test_other_bits_without_another_metric_name_the_outputs(capsys):
    remake("train", "eval")
    change_lock(record_outputs)

    lines = printed(capsys)

    assert "No metric differs. Outputs that differ:" in lines
    assert "  data/models" in lines


# Files that are not what dvc.lock records.


@pytest.mark.parametrize("path", [METRICS, "data/models/best_model_params.pt"])
def test_an_output_that_was_edited_is_refused(capsys, path):
    file = Path(path)
    content = file.read_bytes()
    file.unlink()  # it may be a link into the cache
    file.write_bytes(content.replace(b"1", b"2", 1))

    output = "data/models" if path.startswith("data") else path
    refused(verdict.main([]), capsys.readouterr().err, 4, f"{output}: not what dvc.lock records", "`python src verify`")


def test_a_commit_whose_metrics_are_not_those_of_its_lock_is_another_run(committed, capsys):
    content = Path(METRICS).read_text()
    before = read_json(METRICS)["bits_per_byte"]
    write_json(METRICS, read_json(METRICS) | {"bits_per_byte": before - 0.125})
    committed.commit("a better score")
    write_text(METRICS, content)

    lines = printed(capsys)
    found = document(capsys)

    assert lines[0].startswith("Not bitwise identical to the committed run: 1 of 19 outputs differ")
    assert f"  bits_per_byte  {before - 0.125:.5g} -> {before:.5g}" in lines
    assert f"The last commit contradicts itself: {METRICS} was edited after the run." in lines
    assert (found["identical"], found["outputs"]) == (False, [METRICS])
    assert_next(lines, "  git log -p -1 -- dvc.lock metrics plots ", COMPARE)


@pytest.mark.parametrize("path", [METRICS, "plots/validation.csv"])
def test_metrics_and_curves_that_differ_beside_equal_losses_and_weights_were_edited(committed, capsys, path):
    """In the commit, whose dvc.lock has the hash of the edited file; no processor gives such a difference."""
    lock = Path("dvc.lock").read_text()
    content = Path(path).read_text()
    Path(path).write_text(content.replace("1", "2", 1))
    change_lock(record_outputs)
    committed.commit("a better result")
    write_text(path, content)
    write_text("dvc.lock", lock)

    lines = printed(capsys)

    assert lines[0].startswith("Not bitwise identical to the committed run: 1 of 19 outputs differ")
    assert f"The last commit contradicts itself: {path} was edited after the run." in lines


@pytest.mark.parametrize("change", [other_code, train_with(log_every_tokens=7)])
def test_other_code_or_parameters_may_write_another_curve_beside_equal_weights(capsys, change):
    curve = Path("plots/validation.csv")
    curve.write_text(curve.read_text().replace("val_loss", "loss"))
    change_lock(record_outputs, change)

    lines = printed(capsys)

    assert "1 of 19 outputs differ" in lines[0]
    assert not any("contradicts itself" in line for line in lines)


def test_a_score_that_does_not_follow_from_the_details_is_refused(committed, capsys):
    metrics = read_json(METRICS)
    write_json(METRICS, metrics | {"bits_per_byte": metrics["bits_per_byte"] - 0.125})
    change_lock(record_outputs)
    committed.commit("a better result")

    refused(verdict.main([]), capsys.readouterr().err, 4, f"{METRICS}: bits_per_byte is ", "`python src verify`")


def test_parameters_that_changed_since_the_run_are_named(committed, capsys):
    """In params.yaml, and in a preset that it selects; another preset is not of the run."""
    committed.change(**{"train.peak_lr": 0.5, "models.micro.d_ff": 64, "models.tiny.d_ff": 8})

    lines = printed(capsys)

    start = lines.index("Parameters that changed since this run, then -> now:")
    assert [line.split() for line in lines[start + 1 : start + 3]] == [
        ["train.peak_lr", "0.01", "->", "0.5"],
        ["models.micro.d_ff", "32", "->", "64"],
    ]
    assert "`dvc repro` computes them again, `make back` undoes the change." in lines[start + 3]
    assert lines[0] == f"{IDENTICAL}."
    assert_next(lines, "  dvc repro ", REPORT)
    assert {"name": "train.peak_lr", "committed": 0.01, "now": 0.5} in document(capsys)["changed_parameters"]

    # In a commit they contradict its dvc.lock, and `make back` undoes nothing.
    committed.commit("other parameters")
    lines = printed(capsys)
    assert "The last commit contradicts itself: its parameters are not those of its dvc.lock." in lines
    assert not any("make back" in line for line in lines)


# Another run.


def other_preset(stages: dict) -> None:
    """Select a preset of another name, in which one value differs."""
    params = stages["train"]["params"]
    presets = params["presets.yaml"]
    presets["models.other"] = presets.pop("models.micro") | {"d_ff": 64}
    params["params.yaml"]["model.name"] = "other"


def test_another_run_is_not_taken_for_other_bits(committed, capsys):
    """Of the same parameter in a preset of another name, and of a parameter of the user's."""
    remake("train", "eval")
    micro = committed.get("models.micro")
    committed.change(**{"train.peak_lr": 0.5, "model.name": "other", "models.other": micro | {"d_ff": 64}})
    change_lock(other_preset, train_with(peak_lr=0.5))
    before, now = raise_loss()

    lines = printed(capsys)

    assert lines[0].startswith("Another run than the committed one: 3 of its parameters changed; 7 of 19 outputs")
    differences = [line.split() for line in lines if "->" in line]
    assert ["train.peak_lr", "0.01", "->", "0.5"] in differences
    assert ["model.name", "micro", "->", "other"] in differences
    assert ["models.*.d_ff", "32", "->", "64"] in differences
    assert ["bits_per_byte", f"{before:.5g}", "->", f"{now:.5g}"] in differences
    assert not any("reproducibility" in line for line in lines)
    assert_next(lines, COMPARE, BACK)


def test_a_run_on_other_text_is_not_sent_to_compare(committed, capsys):
    """`compare` would reject the two."""
    remake("fetch", "train", "eval")
    committed.change(**{"train.peak_lr": 0.5})
    change_lock(record_outputs, train_with(peak_lr=0.5))

    assert_next(printed(capsys), REPORT, BACK)


def test_other_code_is_another_run(capsys):
    remake("train", "eval")
    change_lock(record_outputs, other_code)

    lines = printed(capsys)

    assert lines[0].startswith("Another run than the committed one: 1 of its inputs (code, packages or text) changed")
    assert "7 of 19 outputs differ" in lines[0]
    assert "  src/train.py" in lines
    assert not any("reproducibility" in line for line in lines)
    assert_next(lines, COMPARE, BACK)

    # A program reads the same, and of a parameter that differs too.
    change_lock(train_with(peak_lr=0.5))
    before, now = raise_loss()
    found = document(capsys)
    assert found["identical"] is False
    assert len(found["outputs"]) == 7
    assert found["parameters"] == [{"name": "train.peak_lr", "committed": 0.01, "now": 0.5}]
    assert found["inputs"] == found["changed_code"] == ["src/train.py"]
    assert {"name": "bits_per_byte", "committed": before, "now": now} in found["metrics"]
    assert found["score"]["bits_per_byte"] == now
    assert any("The results are of the former code." in caveat for caveat in found["caveats"])
    assert check_document(found) == documented(verdict.SCHEMA).keys()


def test_an_output_that_was_renamed_is_a_changed_input(committed, capsys):
    """As in dvc.yaml, which is not committed yet."""

    def rename(stages: dict) -> None:
        for entry in entries_of(stages):
            if entry["path"] == "data/models":
                entry["path"] = "data/former"

    now = Path("dvc.lock").read_text()
    change_lock(rename)
    committed.commit("with the former name")
    Path("dvc.lock").write_text(now)

    lines = printed(capsys)

    assert lines[0].startswith("Another run than the committed one: 1 of its inputs ")
    assert "2 of 20 outputs differ" in lines[0]
    assert "  data/former" in lines


# What the results are not of.


def test_code_that_changed_since_the_run_is_named(capsys):
    """As after `make back`, which leaves the code of an experiment."""
    with open("src/lm/model/gemma3.py", "a") as file:
        file.write("# changed\n")
    write_text("src/lm/model/new.py", "")

    lines = printed(capsys)

    start = lines.index("Code that changed since this run:")
    first, second, remedy = lines[start + 1 : start + 4]
    assert lines[0] == f"{IDENTICAL}."
    assert first == "  src/lm/model/gemma3.py"
    assert second == "  src/lm/model/new.py"
    assert "`dvc repro`" in remedy
    assert "`git restore src`" in remedy


def test_a_score_of_a_former_run_is_not_printed(capsys):
    """As after `dvc repro audit` on other text."""
    first_stages = ("fetch", "make_tokenizer", "tokenize_train", "tokenize_val", "audit")
    remake(*first_stages)
    change_lock(lambda stages: record_outputs({name: stages[name] for name in first_stages}))

    lines = printed(capsys)

    assert "Not scored: train, eval, plot did not run on the present inputs yet; run `dvc repro`." in lines
    assert not any("bits per byte" in line for line in lines)
    assert_next(lines, "  dvc repro ", REPORT)


def test_weights_that_were_not_trained_here_are_said_to_come_from_the_cache(capsys):
    of_trained = printed(capsys)
    shutil.rmtree(".runs")
    of_restored = printed(capsys)

    assert not any("DVC's cache" in line for line in of_trained)
    assert "DVC's cache" in of_restored[1]
    assert "python src verify --retrain" in of_restored[2]


# Nothing to compare with.


def test_conflicts_of_a_merge_are_named_with_the_commands_that_end_them(capsys):
    lock = Path("dvc.lock").read_text()
    write_text("dvc.lock", f"<<<<<<< HEAD\n{lock}=======\n{lock}>>>>>>> other\n")

    status = verdict.main([])

    remedy = "`git checkout --ours dvc.lock metrics plots && dvc repro`"
    refused(status, capsys.readouterr().err, 4, "dvc.lock: a merge left conflicts in it", remedy)


def test_a_repository_that_git_refuses_is_not_called_empty(committed, capsys, monkeypatch):
    """Git tests the owner of the folder as this variable says."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")

    lines = printed(capsys)

    assert lines[0].startswith("Not compared: ")
    assert f"git config --global --add safe.directory {committed.folder}" in lines[0]
    assert "bits per byte" in lines[1]


def remove_lock_from_git(workspace) -> None:
    workspace.run("git", "rm", "-q", "--cached", "dvc.lock")
    workspace.run("git", "commit", "-q", "-m", "no dvc.lock")


def remove_git(workspace) -> None:
    shutil.rmtree(".git")


@pytest.mark.parametrize("change", [remove_lock_from_git, remove_git])
def test_without_git_or_a_committed_run_nothing_is_compared(committed, capsys, change):
    change(committed)

    found = document(capsys)
    lines = printed(capsys)

    assert (found["identical"], found["num_outputs"]) == (None, None)

    assert lines[0].startswith("Not compared: ")
    assert "bits per byte" in lines[1]
    assert_next(lines, GENERATE, REPORT)


def test_without_a_run_or_one_of_its_outputs_there_is_no_verdict(capsys):
    shutil.rmtree("data/models")
    shutil.rmtree("data/evaluation")
    remedies = ("`dvc pull`", "`dvc repro`", "`make back`")
    refused(verdict.main([]), capsys.readouterr().err, 4, "data/models, data/evaluation: missing", *remedies)

    Path("dvc.lock").unlink()
    refused(verdict.main([]), capsys.readouterr().err, 4, "dvc.lock: missing; run `dvc repro` first")


# The commands to go on with.


def test_a_prompt_is_quoted_for_the_shell(committed, capsys):
    prompt = 'It\'s "$1"'
    prompts = {"sources.small.prompts": ["", f"{prompt}\n"]}
    committed.change(**prompts)
    change_lock(lambda stages: stages["eval"]["params"]["sources.yaml"].update(prompts))

    line = next(line for line in printed(capsys) if line.startswith(GENERATE))

    command, _, _ = line.partition("  #")
    assert shlex.split(command) == ["python", "src", "generate", prompt]


def test_the_environment_is_activated_where_it_is_not(committed, capsys, monkeypatch):
    activate = committed.folder / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setattr("sys.prefix", str(committed.folder / ".venv"))

    assert "  source .venv/bin/activate" in printed(capsys)
