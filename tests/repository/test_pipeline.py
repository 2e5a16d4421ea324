"""dvc.yaml tells the whole truth: its dependencies are the imports, its parameters the sections that a stage reads."""

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
# tokenize_split.py serves two stages. The training slice alone decides train.bin. Other stages use modules beside its
# read_slice: make_tokenizer reads the training slice itself, audit none.
VALIDATION_SLICE = ("sources.yaml", "sources.*.validation")
NOT_READ = {
    "make_tokenizer": {VALIDATION_SLICE},
    "tokenize_train": {VALIDATION_SLICE},
    "audit": {("params.yaml", "data.source"), ("sources.yaml", "sources.*.train"), VALIDATION_SLICE},
}


Section = tuple[str, str]  # a file of parameters, and the dotted name of a section in it


def script_of(stage: str) -> Path:
    return ROOT / command_of(STAGES[stage]).split()[1]


def modules_of(stage: str) -> set[Path]:
    """Return the script of a stage and all modules that it imports."""
    return closure(GRAPH, [script_of(stage)])


def dependency_of(module: Path) -> str:
    """Return what dvc.yaml lists for a module: its package, such as src/lm/core, or the file itself."""
    return "/".join(module.relative_to(ROOT).parts[:3])


def is_below(path: str, folders: list[str]) -> bool:
    """Return True if a path is one of the folders or files, or is in one of the folders."""
    return any(Path(path).is_relative_to(folder) for folder in folders)


def sections_of_stage(stage: str) -> set[Section]:
    """Return the sections that a stage reads, itself or in the library."""
    return {section for module in modules_of(stage) for section in sections_read(module)}


def sections_read(module: Path) -> set[Section]:
    """Return the sections in the calls `read_section(FILE, NAME, …)` of a module; a computed piece becomes *."""
    calls = re.findall(r'read_section\((PARAMS|PRESETS|SOURCES), f?"([^"]*)"', module.read_text())
    return {(f"{file.lower()}.yaml", re.sub(r"\{[^}]*\}", "*", name).removesuffix(".kind")) for file, name in calls}


def sections_listed(stage: str) -> set[Section]:
    """Return the sections that dvc.yaml lists for a stage."""
    listed = set()
    for entry in STAGES[stage].get("params", []):
        if isinstance(entry, str):
            entry = {"params.yaml": [entry]}
        for file, names in entry.items():
            for name in names:
                without_variables = re.sub(r"\$\{[^}]*\}", "*", name)
                listed.add((file, without_variables))
    return listed


def is_within(section: Section, other: Section) -> bool:
    file, name = section
    other_file, other_name = other
    return file == other_file and f"{name}.".startswith(f"{other_name}.")


@pytest.mark.parametrize("stage", STAGES)
def test_code_dependencies_are_the_packages_of_the_import_closure(stage):
    needed = {dependency_of(module) for module in modules_of(stage)}

    listed = [dep for dep in STAGES[stage]["deps"] if dep.startswith("src/")]

    assert listed == sorted(needed)


@pytest.mark.parametrize("stage", STAGES)
def test_parameters_are_the_sections_read(stage):
    listed = sections_listed(stage)
    read = set()
    for section in sections_of_stage(stage) - NOT_READ.get(stage, set()):
        file, _ = section
        file_is_dependency = file in STAGES[stage]["deps"]
        if section in listed or not file_is_dependency:
            read.add(section)

    for section in read:
        assert any(is_within(section, other) for other in listed), f"not listed: {section}"
    for section in listed:
        assert any(is_within(other, section) for other in read), f"not read: {section}"


# Packages that stages import but that decide no byte of a result: they read YAML, look up hardware, show progress, or
# download files whose hashes are checked. dvc names the files of own text that it hashes, and with others it runs fetch
# again. matplotlib draws pictures, in the stage plot, which lists requirements.txt.
DECIDE_NOTHING = {
    "dvc",
    "httpx2",
    "huggingface_hub",
    "matplotlib",
    "psutil",
    "requests",
    "ruamel",
    "tqdm",
    "triton",
}


def packages_of(stage: str) -> set[str]:
    """Return the installed packages that a stage imports."""
    names = set()
    for module in modules_of(stage):
        for *_, shortest_name in imported_names(module):
            names.add(shortest_name.split(".")[0])
    ours = {path.stem for path in SRC.iterdir()}
    return names - sys.stdlib_module_names - ours


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_depends_on_the_packages_that_decide_its_bytes(stage):
    bits = (ROOT / "requirements/bits.txt").read_text()
    decisive = set(re.findall(r"^([\w-]+)==", bits, re.M))

    packages = packages_of(stage)

    deps = STAGES[stage]["deps"]
    draws = "matplotlib" in packages
    assert packages <= decisive | DECIDE_NOTHING
    assert ("torch" in packages) == (stage in ("train", "eval"))
    assert "requirements/bits.txt" in deps
    assert ("requirements.txt" in deps) == draws


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_first_checks_the_parameters_of_all(stage):
    """So `dvc repro` refuses a wrong value before any work, also where it skips the stages before."""
    assert STAGES[stage]["cmd"][0] == "python src check_parameters"


def note_reads(folder: Path, notes: Path) -> None:
    """A sabotage: write the path of each file of a folder that this process opens to read into `notes`."""

    def note(event: str, arguments: tuple) -> None:
        if event != "open":
            return
        name, _, flags = arguments
        is_written = flags & (os.O_WRONLY | os.O_RDWR)
        if is_written or not isinstance(name, str | Path):
            return
        path = Path(os.path.abspath(name))
        if path.is_relative_to(folder) and path.is_file():
            with open(notes, "a") as file:
                file.write(f"{path.relative_to(folder)}\n")

    sys.addaudithook(note)


# Of these files dvc.yaml lists sections, or nothing: runtime.yaml decides no byte. Stages read what dvc.yaml lists.
NOT_LISTED = {"dvc.yaml", "params.yaml", "presets.yaml", "sources.yaml", "runtime.yaml"}


def is_hidden(name: str) -> bool:
    """Return True for files such as .dvc/config and __pycache__/x.pyc."""
    return any(part.startswith((".", "_")) for part in Path(name).parts)


@pytest.mark.slow
def test_every_file_that_a_stage_reads_is_a_dependency(finished, tmp_path, monkeypatch):
    """Also the model that a run starts from, and the tokenizer of a folder. Files opened by C++ are not seen."""
    workspace = Workspace(tmp_path / "ws", finished)
    monkeypatch.chdir(workspace.folder)
    shutil.copytree("data/models", "start")
    shutil.copytree("data/tokenizer", "vocabulary")
    paths = {
        "train.init_from": "start",
        "tokenizer.path": "vocabulary",
        "local.path": "data/local",
    }
    workspace.change(**paths)
    workspace.change(**{"tokenizer.name": "folder"})
    notes = tmp_path / "notes"

    for stage in STAGES:
        notes.write_text("")
        ended = run_stage(note_reads, workspace.folder, notes, command=module_and_arguments(stage))
        assert ended.code == 0, ended.err

        read = {name for name in notes.read_text().splitlines() if not is_hidden(name)}
        deps = [re.sub(r"\$\{(.*)\}", lambda variable: paths[variable[1]], dep) for dep in STAGES[stage]["deps"]]
        known = [*deps, *outputs_of(stage), *NOT_LISTED]
        unknown = {name for name in read if not is_below(name, known)}
        assert unknown == set(), stage
        assert read - NOT_LISTED, stage


def test_dvc_lock_records_the_stages_of_dvc_yaml_and_no_others():
    """A record of a stage that is gone stays as it is: after `-S data.source=local`, an export would be rejected."""
    lock = yaml.safe_load((ROOT / "dvc.lock").read_text())

    assert lock["stages"].keys() == STAGES.keys()
