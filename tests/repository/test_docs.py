"""README.md, docs/ and data/README.md: their code runs, and what they name exists.

Code blocks carry a tag: `run` blocks run here, `slow` blocks run under make test-slow, `parse` blocks are parsed, and
`output` blocks and graphs are written by benchmarks/pages.py. The `run` blocks of README.md run in one shell.
Training takes long, so the `run` blocks of a page that trains run in order under make test-slow, and its other blocks
here too.
"""

import contextlib
import importlib
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lm.core.params import find_problems, read_yaml
from lm.text.slices import AnySlice, Slice
from lm.text.sources.kinds import AnyFetch
from support import ROOT
from support.workspace import Workspace

BLOCK = re.compile(r"^```(\w+)[ \t]*(\w*)\n(.*?)^```", re.M | re.S)
MARKED = re.compile(r"^<!-- figures:[\w-]+ -->\n.*?^<!-- end -->$", re.M | re.S)
PAGES = [
    ROOT / "README.md",
    ROOT / "data" / "README.md",
    ROOT / "recipes" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("extras/*/README.md")),
]
TOOLS = runpy.run_path(str(ROOT / "src" / "__main__.py"))["TOOLS"]
OTHERS = [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "faults" / "README.md"]


def name_of(page) -> str:
    return str(page.relative_to(ROOT))


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(*tags):
    return [
        pytest.param(language, tag, code, id=f"{name_of(page)}-{number}")
        for page in PAGES
        for number, (language, tag, code) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1)
        if not tags or tag in tags
    ]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, finished):
    workspace = Workspace(tmp_path_factory.mktemp("docs"), finished)
    workspace.commit()
    return workspace


def test_every_block_has_a_tag_and_parses():
    tags = {
        "bash": ("run", "slow", "parse"),
        "python": ("run", "parse"),
        "text": ("output",),
        "yaml": ("parse",),
        "mermaid": ("",),
    }
    for block in blocks():
        language, tag, code = block.values
        assert tag in tags[language], block.id
        if language == "python":
            compile(code, block.id, "exec")
        elif language == "yaml":
            assert yaml.safe_load(code), block.id
        elif language == "bash":
            subprocess.run(["bash", "-n"], input=code, text=True, check=True)


def run_block(workspace, language, code):
    """Run the code of a block: Python and tools in this process, which has imported torch, other lines in bash."""
    if language == "python":
        with contextlib.chdir(workspace.folder):
            exec(compile(code, "docs", "exec"), {"__name__": "__main__"})
        return
    for line in code.replace("\\\n", "").splitlines():
        words = shlex.split(line, comments=True)
        if words[:2] == ["python", "src"]:
            run_tool(workspace, *words[2:])
        else:
            workspace.run("bash", "-euo", "pipefail", "-c", line)


def run_tool(workspace, name, *arguments):
    """Call the tool as src/__main__.py does."""
    tool = importlib.import_module(TOOLS[name])
    with contextlib.chdir(workspace.folder):
        assert tool.main([*arguments]) == 0, name


def page_of(block) -> str:
    return block.id.rpartition("-")[0]


def is_long(block) -> bool:
    """Whether the block trains, or builds on what the tutorial trains."""
    trains = any(words in block.values[2] for words in ("dvc exp run", "--retrain"))
    return trains or page_of(block) == "docs/tutorial.md"


HALF = "train.max_tokens=921600", "train.max_tokens=5120"  # half of the default's tokens, and of the small pipeline's


def test_the_run_blocks_of_readme_run_one_after_the_other_in_one_shell(finished, tmp_path):
    """The shell is one in which nothing but `.venv` is there, as after `make`."""
    workspace = Workspace(tmp_path, finished)
    workspace.commit()
    (tmp_path / ".venv").symlink_to(sys.prefix)
    environment = str(Path(sys.executable).parent)
    others = [folder for folder in workspace.environment["PATH"].split(":") if folder != environment]
    code = "".join(block.values[2] for block in blocks("run") if page_of(block) == "README.md")

    done = workspace.run("bash", "-euo", "pipefail", "-c", code.replace(*HALF), PATH=":".join(others))

    assert "bits per byte" in done.stdout and (tmp_path / "dvc_plots" / "index.html").exists()
    assert workspace.run("git", "status", "--porcelain").stdout == "", "`make back` left changes"


SHORT = [block for block in blocks("run") if page_of(block) != "README.md" and not is_long(block)]
LONG_PAGES = sorted({page_of(block) for block in blocks("run") if is_long(block)} - {"README.md"})


@pytest.mark.parametrize(("language", "tag", "code"), SHORT)
def test_run_blocks_run(workspace, language, tag, code):
    run_block(workspace, language, code)


@pytest.mark.slow
@pytest.mark.parametrize("page", LONG_PAGES)
def test_the_run_blocks_of_a_page_that_trains_run_in_order(finished, tmp_path, page):
    workspace = Workspace(tmp_path, finished)
    workspace.change(**{"sources.local.fetch.include": "**/*"})  # as in the repository
    if page == "docs/tutorial.md":  # it trains on a hundred times the tokens of the small pipeline
        names = ("batch_tokens", "micro_batch_tokens", "log_every_tokens")
        lengths = {"train.max_tokens": 1024000, "train.eval_every_tokens": 204800}
        workspace.change(**dict.fromkeys([f"train.{name}" for name in names], 8192), **lengths)
    workspace.commit()
    for block in blocks("run"):
        if page_of(block) == page:
            run_block(workspace, block.values[0], block.values[2])
    assert workspace.run("git", "status", "--porcelain", "data").stdout == "", "git add -A would take weights"


@pytest.mark.slow
@pytest.mark.parametrize(("language", "tag", "code"), blocks("slow"))
def test_slow_blocks_run_in_a_fresh_clone(tmp_path, language, tag, code):
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "clone")], check=True)
    subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=tmp_path / "clone", check=True)


@pytest.mark.slow
def test_the_table_of_two_experiments_fits_into_120_columns(finished, tmp_path):
    """They differ in their text, their model and their length; DVC would print more than 900 columns."""
    workspace = Workspace(tmp_path, finished)
    workspace.write_own_text(60)
    workspace.commit()
    for name, values in {"longer": ["train.max_tokens=12800"], "own": ["data.source=local"]}.items():
        changed = [word for value in values for word in ("-S", value)]
        workspace.run("dvc", "exp", "run", "-n", name, "-S", "presets.yaml:models.micro.d_ff=48", *changed)

    blocks_of_page = [block.values[2] for block in blocks("run") if page_of(block) == "docs/experiments.md"]
    (command,) = [code for code in blocks_of_page if code.startswith("dvc exp show")]
    table = workspace.run("bash", "-euc", command).stdout

    for shown in ("longer", "own", "bits_per_byte", "train.max_tokens", "data.source", "models.micro.d_ff"):
        assert shown in table, table
    assert max(len(line) for line in table.splitlines()) <= 120, table


def test_output_blocks_are_generated():
    for page in PAGES:
        outside = MARKED.sub("", page.read_text(encoding="utf-8"))
        kinds = [(language, tag) for language, tag, _ in BLOCK.findall(outside)]
        assert ("text", "output") not in kinds and ("mermaid", "") not in kinds, name_of(page)


# What the pages name


def test_links_lead_somewhere():
    for page in [*PAGES, *OTHERS]:
        for target in re.findall(r"\]\((?!http)([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), (name_of(page), target)
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
                slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
                assert anchor in slugs, (name_of(page), target)


def test_paths_targets_and_parameters_exist():
    makefile = text_of("Makefile")
    sections = read_yaml(ROOT / "params.yaml") | read_yaml(ROOT / "presets.yaml") | read_yaml(ROOT / "sources.yaml")
    sections["train"] |= read_yaml(ROOT / "runtime.yaml")["train"]
    text = "".join(BLOCK.sub("", page.read_text(encoding="utf-8")) for page in PAGES)
    for target in re.findall(r"`make ([\w-]+)", text):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for path in re.findall(r"`((?:src|extras|tests|benchmarks|\.github)/[\w/.-]+)`", text):
        assert (ROOT / path).exists() or "NAME" in path or path in text_of("dvc.yaml"), path
    for section, name in re.findall(r"`(data|tokenizer|model|local|train|eval)\.(\w+)(?=[`:=])", text):
        assert name in (*sections[section], "bin", "json", "parquet"), name


def test_the_sources_that_data_md_shows_are_valid(tmp_path):
    """Each YAML block of the page has entries for `sources` in sources.yaml."""
    of_page = [block.values for block in blocks("parse") if page_of(block) == "docs/data.md"]
    shown = [code for language, _, code in of_page if language == "yaml"]
    file = tmp_path / "sources.yaml"
    file.write_text("sources:\n" + "".join(shown))
    sources = read_yaml(file)["sources"]
    assert [source["fetch"]["kind"] for source in sources.values()] == ["datasets", "hub", "mixture"]
    for name in sources:
        parts = {"fetch": AnyFetch, "train": AnySlice, "validation": Slice, "prompts": tuple[str, ...]}
        assert find_problems(file, {f"sources.{name}.{part}": wanted for part, wanted in parts.items()}) == []


def test_each_change_of_the_table_of_ablations_is_valid_and_changes_something(tmp_path):
    workspace = Workspace(tmp_path)
    committed = {path: path.read_bytes() for path in tmp_path.glob("*.yaml")}
    changes = re.findall(r"`(-S [^`]*)`", text_of("docs/ablations.md"))

    for change in changes:
        for path, content in committed.items():
            path.write_bytes(content)
        assignments = [word.rpartition(":")[2].partition("=") for word in shlex.split(change) if word != "-S"]
        values = {name: yaml.safe_load(value) for name, _, value in assignments}
        assert all(workspace.get(name) != value for name, value in values.items()), change
        workspace.change(**values)
        run_tool(workspace, "check_parameters")

    assert len(changes) > 20


def test_pages_install_the_pinned_torch():
    (pinned,) = re.findall(r"^(torch==[\d.]+)", text_of("requirements/bits.txt"), re.M)
    for name in ("README.md", "docs/install.md", ".devcontainer/devcontainer.json"):
        assert set(re.findall(r"torch==[\d.]+", text_of(name))) == {pinned}, name


def test_the_newest_version_of_the_changelog_is_the_one_to_cite():
    version, date = re.search(r"^## (\S+) \((\S+)\)$", text_of("CHANGELOG.md"), re.M).groups()
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert (citation["version"], citation["date-released"]) == (version, date)


def test_names_for_other_code_can_be_imported():
    section = text_of("docs/architecture.md").split("These names are stable")[1].split("\n## ")[0]
    for names, module in re.findall(r"^\| (`.*`) \| `([\w.]+)` \|$", section, re.M):
        for name in re.findall(r"`(\w+)`", names):
            assert hasattr(importlib.import_module(module), name), name
