"""What differs from the begin of a stage is an error; what the stage does not read may change."""

from pathlib import Path

import pytest

from lm.core.errors import IntegrityError
from lm.core.inputs import StageInputs
from support.git import git

FILES = {
    "dvc.yaml": """
stages:
  fetch:
    params: [source]
    outs: [data/raw]
  train:
    params: [model, train.lr, presets.yaml: ["models.${model.name}"]]
    deps: [data/raw, "${train.init}", src/lm, src/train.py, absent.txt]
""",
    "params.yaml": "model: {name: tiny}\ntrain: {lr: 1.0, init: start, seed: 1}\n",
    "presets.yaml": "models:\n  tiny: {width: 8}\n  large: {width: 9}\n",
    "src/train.py": "train",
    "src/lm/core/files.py": "files",
    "data/raw/text/0000": "text",
    "start/model": "weights",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_EXP_NAME", raising=False)
    for name, content in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)


def edit(name: str, old: str, new: str) -> None:
    """Edit one of the FILES, or make a new one."""
    Path(name).write_text(FILES.get(name, "").replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("params.yaml", "seed: 1", "seed: 2"),  # a parameter of others
        ("presets.yaml", "width: 9", "width: 7"),
        ("src/train.py", "", ""),  # code with the same content
        ("src/lm/.files.py.swp", "", ""),  # a file of an editor
    ],
)
def test_what_the_stage_does_not_read_may_change(name, old, new):
    inputs = StageInputs("train")

    edit(name, old, new)

    inputs.check_unchanged()


@pytest.mark.parametrize(
    ("name", "old", "new", "found"),
    [
        ("params.yaml", "lr: 1.0", "lr: 0.5", "params.yaml: train.lr was 1.0 and is 0.5:"),
        ("params.yaml", "model", "{", "params.yaml: model.name was 'tiny' and is missing (and "),
        ("params.yaml", "tiny", "large", "params.yaml: model.name was 'tiny' and is 'large' (and 2 more):"),
        ("presets.yaml", "width: 8", "width: 4", "presets.yaml: models.tiny.width was 8 and is 4:"),
        ("src/train.py", "train", "trail", "src/train.py was SHA-256 "),
        ("src/lm/new.py", "", "", "src/lm/new.py was missing and is SHA-256 "),
        ("data/raw/text/0000", "text", "texts", "data/raw/text/0000 was 4 bytes"),
        ("start/model", "weights", "others!", "start/model was 7 bytes"),
    ],
)
def test_what_the_stage_reads_must_be_as_it_was(name, old, new, found):
    inputs = StageInputs("train")

    edit(name, old, new)

    with pytest.raises(IntegrityError) as error:
        inputs.check_unchanged()
    assert str(error.value).startswith(found)
    assert "the stage train ran; nothing was published; undo the change" in str(error.value)


THREE_STAGES = """
stages:
  fetch: {params: [source], outs: [data/raw]}
  tokenize: {params: [size], deps: [data/raw], outs: [data/tokens]}
  train: {params: [train.lr], deps: [data/tokens]}
"""


@pytest.fixture
def experiment(monkeypatch):
    """An experiment that has begun, with the commit in which DVC keeps the files of its begin."""
    Path("dvc.yaml").write_text(THREE_STAGES)
    Path("params.yaml").write_text("source: a\nsize: 1\nother: 1\n" + FILES["params.yaml"])
    for command in (["init", "-q"], ["add", "params.yaml"], ["commit", "-q", "-m", "begin"]):
        git(*command)
    git("update-ref", "refs/exps/exec/EXEC_MERGE", "HEAD")
    monkeypatch.setenv("DVC_EXP_NAME", "tried")


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("source: a", "source: b", "source was 'a'"),
        ("size: 1", "size: 2", "size was 1"),
        ("lr: 1.0", "lr: 2.0", "train.lr was 1.0"),
    ],
)
@pytest.mark.usefixtures("experiment")
def test_an_experiment_has_the_parameters_with_which_it_began(monkeypatch, old, new, found):
    """Those of earlier stages too, and those that changed before this stage, as by `git restore`."""
    content = Path("params.yaml").read_text()
    Path("params.yaml").write_text(content.replace("other: 1", "other: 2"))  # that no stage up to this one reads
    StageInputs("train").check_unchanged()

    Path("params.yaml").write_text(content.replace(old, new))

    with pytest.raises(IntegrityError, match=rf"^params\.yaml: {found} when this experiment began and is "):
        StageInputs("train")
    monkeypatch.delenv("DVC_EXP_NAME")
    StageInputs("train").check_unchanged()


@pytest.mark.usefixtures("experiment")
def test_parameters_of_earlier_stages_stay_while_a_stage_of_an_experiment_runs():
    inputs = StageInputs("train")

    edit("params.yaml", "model", "source: b\nsize: 1\nmodel")

    with pytest.raises(IntegrityError, match=r"^params\.yaml: source was 'a' when this experiment began and is 'b'"):
        inputs.check_unchanged()
