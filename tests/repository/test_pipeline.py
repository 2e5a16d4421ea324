"""dvc.yaml tells the whole truth: its dependencies are the imports, its parameters the sections that a stage reads."""

import ast
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from support import ROOT
from support.imports import closure, import_graph, imported_names
from support.stages import STAGES, command_of, module_and_arguments, outputs_of
from support.train_cases import run_stage
from support.workspace import Workspace

SRC = ROOT / "src"
GRAPH = import_graph(SRC)
# The names that the stages give to the files.
PARAMS_FILES = {"PARAMS": "params.yaml", "PRESETS": "presets.yaml", "SOURCES": "sources.yaml"}
# tokenize_split.py serves two stages. The training slice alone decides train.bin.
NOT_READ = {"tokenize_train": {("sources.yaml", "sources.*.validation")}}


def script_of(stage: str) -> Path:
    return ROOT / command_of(STAGES[stage]).split()[1]


def dependency_of(module: Path) -> str:
    """Return what dvc.yaml lists for a module: its package, such as src/lm/core, or the file itself."""
    return "/".join(module.relative_to(ROOT).parts[:3])


def sections_of_stage(stage: str) -> set[tuple[str, str]]:
    """Return the (file, section) pairs that a stage reads, itself or in the library."""
    return {section for path in closure(GRAPH, [script_of(stage)]) for section in sections_read(path)}


def sections_read(path: Path) -> set[tuple[str, str]]:
    """Return the (file, section) pairs that a module reads; a computed name becomes *."""
    sections = set()
    for node in ast.walk(ast.parse(path.read_text())):
        is_read = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "read_section"
        if is_read and getattr(node.args[0], "id", "") in PARAMS_FILES:
            name = node.args[1]
            pieces = name.values if isinstance(name, ast.JoinedStr) else [name]
            text = "".join(piece.value if isinstance(piece, ast.Constant) else "*" for piece in pieces)
            sections.add((PARAMS_FILES[node.args[0].id], text.removesuffix(".kind")))
    return sections


def sections_listed(stage: str) -> set[tuple[str, str]]:
    """Return the (file, section) pairs that dvc.yaml lists for a stage."""
    listed = set()
    for entry in STAGES[stage].get("params", []):
        file, names = next(iter(entry.items())) if isinstance(entry, dict) else ("params.yaml", [entry])
        listed |= {(file, re.sub(r"\$\{[^}]*\}", "*", name)) for name in names}
    return listed


def is_within(section: tuple[str, str], other: tuple[str, str]) -> bool:
    return section[0] == other[0] and (section[1] == other[1] or section[1].startswith(other[1] + "."))


@pytest.mark.parametrize("stage", STAGES)
def test_code_dependencies_are_the_packages_of_the_import_closure(stage):
    listed = [dep for dep in STAGES[stage]["deps"] if dep.startswith("src/")]
    assert listed == sorted({dependency_of(path) for path in closure(GRAPH, [script_of(stage)])})


@pytest.mark.parametrize("stage", STAGES)
def test_parameters_are_the_sections_read(stage):
    listed = sections_listed(stage)
    read = sections_of_stage(stage) - NOT_READ.get(stage, set())
    read = {section for section in read if section[0] not in STAGES[stage]["deps"]} | read & listed
    assert {section for section in read if not any(is_within(section, other) for other in listed)} == set()
    assert {section for section in listed if not any(is_within(other, section) for other in read)} == set()


# Packages that stages import but that decide no byte of a result: they read YAML, look up hardware, show progress, or
# download files whose hashes are checked. matplotlib draws pictures, in the stage plot, which lists requirements.txt.
DECIDE_NOTHING = {"httpx2", "huggingface_hub", "matplotlib", "psutil", "requests", "ruamel", "tqdm", "triton"}


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_depends_on_the_packages_that_decide_its_bytes(stage):
    modules = closure(GRAPH, [script_of(stage)])
    names = {name[-1].split(".")[0] for path in modules for name in imported_names(path, SRC)}
    packages = names - set(sys.stdlib_module_names) - {path.stem for path in SRC.iterdir()}
    decisive = re.findall(r"^([\w-]+)==", (ROOT / "requirements/bits.txt").read_text(), re.M)
    assert packages <= {*decisive, *DECIDE_NOTHING}
    assert "requirements/bits.txt" in STAGES[stage]["deps"]
    assert ("requirements.txt" in STAGES[stage]["deps"]) == ("matplotlib" in packages)


def test_every_stage_up_to_train_first_checks_the_parameters_of_all():
    """So `dvc repro` refuses a wrong value before any work, also where it skips the stages before."""
    checking = [stage for stage in STAGES if STAGES[stage]["cmd"][0] == "python src check_parameters"]
    assert checking == list(STAGES)[: list(STAGES).index("train") + 1]


@pytest.mark.parametrize("stage", STAGES)
def test_every_path_of_a_command_is_a_dependency_or_an_output(stage):
    known = STAGES[stage]["deps"] + outputs_of(stage)
    words = command_of(STAGES[stage]).split()
    paths = [word for word in words if "/" in word or word in ("metrics", "plots")]
    assert [path for path in paths if not any(name == path or name.startswith(path + "/") for name in known)] == []


@pytest.mark.parametrize("stage", STAGES)
def test_every_path_of_a_command_stands_after_the_flag_of_its_name(stage):
    """`--train …/train.bin`; the tokens of tokenize_split.py are named after its split."""
    _, arguments = module_and_arguments(stage)
    flags = dict(zip(arguments[::2], arguments[1::2], strict=True))
    if split := flags.pop("--split", None):
        flags[f"--{split}"] = flags.pop("--tokens")
    assert {flag: Path(path).stem for flag, path in flags.items()} == {flag: flag.strip("-") for flag in flags}


def note_reads(folder: Path, notes: Path) -> None:
    """A sabotage: write the path of each file of a folder that this process opens to read into `notes`."""

    def note(event: str, arguments: tuple) -> None:
        if event == "open" and isinstance(arguments[0], str | Path) and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            path = Path(os.path.abspath(arguments[0]))
            if path.is_relative_to(folder) and path.is_file():
                with open(notes, "a") as file:
                    file.write(f"{path.relative_to(folder)}\n")

    sys.addaudithook(note)


# Of these files dvc.yaml lists sections, or nothing: runtime.yaml decides no byte.
NOT_LISTED = {"params.yaml", "presets.yaml", "sources.yaml", "runtime.yaml"}


def test_every_file_that_a_stage_reads_is_a_dependency(finished, tmp_path, monkeypatch):
    """Also the model that a run starts from, and the tokenizer of a folder. Files opened by C++ are not seen."""
    workspace = Workspace(tmp_path / "ws", finished)
    monkeypatch.chdir(workspace.folder)
    shutil.copytree("data/models", "start")
    shutil.copytree("data/tokenizer", "vocabulary")
    paths = {"train.init_from": "start", "tokenizer.path": "vocabulary", "local.path": "data/local"}
    workspace.change(**paths, **{"tokenizer.name": "folder"})
    notes = tmp_path / "notes"
    for stage in STAGES:
        notes.write_text("")
        ended = run_stage(note_reads, workspace.folder, notes, command=module_and_arguments(stage))
        assert ended.code == 0, ended.err
        listed = [re.sub(r"\$\{(.*)\}", lambda name: paths[name[1]], dep) for dep in STAGES[stage]["deps"]]
        known = [*listed, *outputs_of(stage), *NOT_LISTED]
        visible = {name for name in notes.read_text().splitlines() if not re.search(r"(^|/)[._]", name)}
        unknown = {name for name in visible if not any(Path(name).is_relative_to(each) for each in known)}
        assert unknown == set(), stage
        assert visible - NOT_LISTED, stage


def test_no_output_switches_the_run_cache_off():
    """DVC stores no run of a stage with an uncached output that is neither a metric nor a plot."""
    for stage in STAGES.values():
        assert all(isinstance(entry, str) for entry in stage.get("outs", []))


def test_plots_draw_the_loss_of_a_validation_and_not_its_digest():
    """DVC draws the last column of a curve that names none."""
    (curve,) = [plot["plots/validation.csv"] for plot in STAGES["train"]["plots"] if "plots/validation.csv" in plot]
    assert (curve["x"], curve["y"]) == ("tokens", "val_loss")


def test_the_library_names_parameter_files_by_their_constants():
    """Otherwise `sections_read` would not see what a module of the library reads."""
    for path in {*(SRC / "lm").rglob("*.py")} - {SRC / "lm" / "core" / "paths.py"}:
        code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.S)
        assert not re.search(r'["\'](params|presets|sources)\.yaml["\']', code), path


@pytest.mark.parametrize("stage", ["fetch", "make_tokenizer", "tokenize_train", "audit"])
def test_data_stages_never_import_torch_or_matplotlib(stage):
    for path in closure(GRAPH, [script_of(stage)]):
        assert not re.search(r"^\s*(import|from) (torch|matplotlib)\b", path.read_text(), re.M), path


@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("params.yaml", "train.keep_weights_at=[0,2048]"),
        ("presets.yaml", "models.tiny.d_ff=768"),
        ("sources.yaml", "sources.mixture.train.weights.local=0.7"),
    ],
)
def test_dvcs_s_keeps_every_comment(tmp_path, name, override):
    """DVC writes the file with ruamel.yaml, which drops a comment that stands after the last item of a list."""
    from dvc.utils.hydra import apply_overrides

    copy = tmp_path / name
    copy.write_text((ROOT / name).read_text())
    apply_overrides(copy, [override])
    before, after = (re.findall(r"(?:^|\s)# .*$", path.read_text(), re.M) for path in (ROOT / name, copy))
    assert [comment.strip() for comment in after] == [comment.strip() for comment in before]


def test_dvc_lock_records_the_stages_of_dvc_yaml_and_no_others():
    """A record of a stage that is gone stays as it is: after `-S data.source=local`, an export would be rejected."""
    recorded = yaml.safe_load((ROOT / "dvc.lock").read_text())["stages"]
    assert recorded.keys() == STAGES.keys()
