"""dvc.yaml tells the whole truth: dependencies are imports, parameters are the sections read."""

import ast
import re
import sys
from pathlib import Path

import pytest

from lm.core.params import read_yaml
from support import ROOT

SRC = ROOT / "src"
STAGES = read_yaml(ROOT / "dvc.yaml")["stages"]


# One script, two stages: the training slice alone decides train.bin.
NOT_READ = {"tokenize_train": {"sources.*.validation"}}


def script_of(stage: str) -> Path:
    return ROOT / STAGES[stage]["cmd"].split()[1]


def imported_files(path: Path) -> set[Path]:
    """The project's own modules that a file imports, anywhere in it, directly."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {file for name in names if (file := SRC / (name.replace(".", "/") + ".py")).exists()}
    return found


def import_closure(path: Path) -> set[Path]:
    closure, pending = {path}, [path]
    while pending:
        for file in imported_files(pending.pop()) - closure:
            closure.add(file)
            pending.append(file)
    return closure


def sections_read(path: Path) -> set[str]:
    """The sections of params.yaml that a file reads; what is computed becomes *."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        is_read = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "read_section"
        if is_read and getattr(node.args[0], "id", "") == "PARAMS":
            name = node.args[1]
            parts = name.values if isinstance(name, ast.JoinedStr) else [name]
            found.add("".join(part.value if isinstance(part, ast.Constant) else "*" for part in parts))
    return found


def place(path: Path) -> str:
    """What dvc.yaml names of a module: its folder inside a package such as src/lm/core, or else the file itself."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:3])


@pytest.mark.parametrize("stage", STAGES)
def test_code_dependencies_are_the_folders_of_the_import_closure(stage):
    listed = [dep for dep in STAGES[stage]["deps"] if dep.startswith("src/")]
    assert listed == sorted({place(path) for path in import_closure(script_of(stage))})


@pytest.mark.parametrize("stage", STAGES)
def test_parameters_are_the_sections_read(stage):
    listed = {re.sub(r"\$\{[^}]*\}", "*", name) for name in STAGES[stage].get("params", [])}
    read = {name.removesuffix(".kind") for name in sections_read(script_of(stage))} - NOT_READ.get(stage, set())
    assert {name for name in read if not any(name == p or name.startswith(p + ".") for p in listed)} == set()
    assert {p for p in listed if not any(name == p or name.startswith(p + ".") for name in read)} == set()


@pytest.mark.parametrize("stage", STAGES)
def test_every_path_of_a_command_is_a_dependency_or_an_output(stage):
    outs = []
    for kind in ("outs", "metrics", "plots"):
        outs += [
            name for entry in STAGES[stage].get(kind, []) for name in ([entry] if isinstance(entry, str) else entry)
        ]
    known = STAGES[stage]["deps"] + outs
    paths = [word for word in STAGES[stage]["cmd"].split() if "/" in word or word in ("metrics", "plots")]
    assert [p for p in paths if not any(k == p or k.startswith(p + "/") for k in known)] == []


def test_no_output_switches_the_run_cache_off():
    """DVC keeps no run of a stage with an uncached out that is neither metric nor plot."""
    for stage in STAGES.values():
        assert all(isinstance(entry, str) for entry in stage.get("outs", []))


def test_no_string_parameter_reaches_a_shell():
    assert not [stage for stage in STAGES if "${" in STAGES[stage]["cmd"]]


def test_no_module_shadows_another():
    installed = {
        "datasets",
        "tokenizers",
        "transformers",
        "torch",
        "numpy",
        "tiktoken",
        "dvc",
        "yaml",
        "evaluate",
    }
    for path in SRC.iterdir():
        assert path.stem not in sys.stdlib_module_names | installed


def test_the_library_imports_no_stage_and_reads_no_parameters():
    stages = {script_of(stage) for stage in STAGES}
    for path in (SRC / "lm").rglob("*.py"):
        assert not imported_files(path) & stages
        assert "params.yaml" not in re.sub(r'""".*?"""', "", path.read_text(), flags=re.S).replace("of params.yaml", "")
        if path.name == "__init__.py":
            assert len(ast.parse(path.read_text()).body) <= 1


def test_imports_inside_the_library_point_one_way():
    closed = {path: import_closure(path) - {path} for path in (SRC / "lm").rglob("*.py")}
    assert not [path for path, imports in closed.items() if any(path in closed[other] for other in imports)]


@pytest.mark.parametrize("stage", ["fetch", "make_tokenizer", "tokenize_train", "audit"])
def test_data_stages_never_import_torch_or_matplotlib(stage):
    for path in import_closure(script_of(stage)):
        text = path.read_text()
        assert not re.search(r"^\s*(import|from) (torch|matplotlib)\b", text, re.M), path
