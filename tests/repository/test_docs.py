"""README.md, docs/ and data/README.md: their code runs, and what they name exists.

Code blocks carry a tag: `run` blocks run under make test-slow, `slow` blocks there too, in a fresh clone, and `output`
blocks have what a command printed. The tag of any other block is the reason why it is only parsed here: see NOT_RUN.
The `run` blocks of README.md run in one shell, and those of a page that trains in order.
"""

import contextlib
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from lm.core.params import find_problems, read_yaml
from lm.text.config import AnyFetch
from lm.text.slices import AnySlice, Slice
from support import ROOT
from support.workspace import Workspace
from tools.record.parameters import flatten

BLOCK = re.compile(r"^```(\w+)[ \t]*(\w*)\n(.*?)^```", re.M | re.S)
PAGES = [
    ROOT / "README.md",
    ROOT / "data" / "README.md",
    ROOT / "recipes" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("extras/*/README.md")),
]
OTHERS = [
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests" / "faults" / "README.md",
]


class Block(NamedTuple):
    """A code block, the name of its page such as docs/data.md, and its number there."""

    page: str
    number: int
    language: str
    tag: str
    code: str

    @property
    def id(self) -> str:
        return f"{self.page}-{self.number}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def all_blocks() -> list[Block]:
    found = []
    for page in map(name_of, PAGES):
        for number, (language, tag, code) in enumerate(BLOCK.findall(text_of(page)), 1):
            found.append(Block(page, number, language, tag, code))
    return found


BLOCKS = all_blocks()
RUN_BLOCKS = [block for block in BLOCKS if block.tag == "run"]
SLOW_BLOCKS = [block for block in BLOCKS if block.tag == "slow"]


def is_long(block: Block) -> bool:
    """Whether the block trains, or builds on what the tutorial trains."""
    trains = "dvc exp run" in block.code or "--retrain" in block.code
    return trains or block.page == "docs/tutorial.md"


OF_README = [block for block in RUN_BLOCKS if block.page == "README.md"]
OF_OTHER_PAGES = [block for block in RUN_BLOCKS if block.page != "README.md"]
SHORT = [block for block in OF_OTHER_PAGES if not is_long(block)]
LONG_PAGES = sorted({block.page for block in OF_OTHER_PAGES if is_long(block)})


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, finished):
    workspace = Workspace(tmp_path_factory.mktemp("docs"), finished)
    workspace.commit()
    return workspace


NOT_RUN = {
    "tested": "another test reads the block and runs it, or checks what it holds",
    "trains": "it trains for minutes; the commands run on less text in other tests",
    "names": "a reader puts names in, such as those of an experiment or an address",
    "network": "it downloads packages or data, or needs a server",
    "program": "it needs a program that is not a package of the environment, such as docker or ollama",
    "cluster": "it needs several hosts or a scheduler",
    "gpu": "it needs a GPU",
    "fragment": "it is a piece of another program",
}
TAGS = {
    "bash": ("run", "slow", *NOT_RUN),
    "python": ("run", *NOT_RUN),
    "text": ("output",),
    "yaml": (*NOT_RUN,),
    "mermaid": ("",),
}


def test_every_block_has_a_tag_and_parses():
    for block in BLOCKS:
        assert block.tag in TAGS[block.language], block.id
        if block.language == "python":
            compile(block.code, block.id, "exec")
        elif block.language == "yaml":
            assert yaml.safe_load(block.code), block.id
        elif block.language == "bash":
            subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)


def run_block(workspace: Workspace, block: Block) -> None:
    """Run the code of a block as a reader does."""
    program = ["python", "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    workspace.run(*program, block.code, PYTHONPATH="src:.")


HALF_OF_DEFAULT = "train.max_tokens=921600"
HALF_OF_SMALL = "train.max_tokens=5120"


@pytest.mark.slow
def test_the_run_blocks_of_readme_run_one_after_the_other_in_one_shell(finished, tmp_path):
    """The shell is one in which nothing but `.venv` is there, as after `make`."""
    workspace = Workspace(tmp_path, finished)
    workspace.commit()
    (tmp_path / ".venv").symlink_to(sys.prefix)
    environment = str(Path(sys.executable).parent)
    path = workspace.environment["PATH"].split(":")
    path_without_environment = ":".join(folder for folder in path if folder != environment)
    code = "".join(block.code for block in OF_README)
    small_code = code.replace(HALF_OF_DEFAULT, HALF_OF_SMALL)

    done = workspace.run("bash", "-euo", "pipefail", "-c", small_code, PATH=path_without_environment)

    assert "bits per byte" in done.stdout
    assert (tmp_path / "dvc_plots" / "index.html").exists()
    assert workspace.run("git", "status", "--porcelain").stdout == "", "`make back` left changes"


@pytest.mark.slow
@pytest.mark.parametrize("block", SHORT, ids=lambda block: block.id)
def test_run_blocks_run(workspace, block):
    run_block(workspace, block)


def test_the_first_block_of_python_runs(pipeline):
    block = next(block for block in SHORT if block.language == "python")

    with contextlib.chdir(pipeline):
        exec(compile(block.code, block.id, "exec"), {"__name__": "__main__"})


# It trains on a hundred times the tokens of the small pipeline.
LENGTHS_OF_TUTORIAL = {
    "train.max_tokens": 1024000,
    "train.eval_every_tokens": 204800,
    "train.batch_tokens": 8192,
    "train.micro_batch_tokens": 8192,
    "train.log_every_tokens": 8192,
}


@pytest.mark.slow
@pytest.mark.parametrize("page", LONG_PAGES)
def test_the_run_blocks_of_a_page_that_trains_run_in_order(finished, tmp_path, page):
    workspace = Workspace(tmp_path, finished)
    workspace.change(**{"sources.local.fetch.include": "**/*"})  # as in the repository
    if page == "docs/tutorial.md":
        workspace.change(**LENGTHS_OF_TUTORIAL)
    workspace.commit()

    for block in RUN_BLOCKS:
        if block.page == page:
            run_block(workspace, block)

    assert workspace.run("git", "status", "--porcelain", "data").stdout == "", "git add -A would take weights"


@pytest.mark.slow
@pytest.mark.parametrize("block", SLOW_BLOCKS, ids=lambda block: block.id)
def test_slow_blocks_run_in_a_fresh_clone(tmp_path, block):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], cwd=clone, check=True)


# What the pages name


def anchors_of(page: Path) -> list[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    without_marks = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return [heading.replace(" ", "-") for heading in without_marks]


def test_links_lead_somewhere():
    link = re.compile(r"\]\((?!http)([^)\s]+)\)")
    for page in [*PAGES, *OTHERS]:
        for target in link.findall(page.read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), (page, target)
            if anchor:
                assert anchor in anchors_of(file), (page, target)


def prose() -> str:
    """Return the text of all pages without their code blocks."""
    return "".join(BLOCK.sub("", text_of(name_of(page))) for page in PAGES)


def test_targets_of_make_and_paths_exist():
    makefile = text_of("Makefile")
    pipeline = text_of("dvc.yaml")

    for target in re.findall(r"`make ([\w-]+)", prose()):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for path in re.findall(r"`((?:src|extras|tests|benchmarks|\.github)/[\w/.-]+)`", prose()):
        is_pattern = "NAME" in path
        assert is_pattern or (ROOT / path).exists() or path in pipeline, path


def test_parameters_exist():
    sections = {}
    for name in ("params.yaml", "presets.yaml", "sources.yaml"):
        sections |= read_yaml(ROOT / name)
    sections["train"] |= read_yaml(ROOT / "runtime.yaml")["train"]
    suffixes = ("bin", "json", "parquet", "safetensors")  # of files such as train.bin

    for section, name in re.findall(r"`(data|tokenizer|model|local|train|eval)\.(\w+)(?=[`:=])", prose()):
        assert name in sections[section] or name in suffixes, f"{section}.{name}"

    known = " ".join(flatten(sections))
    for page in map(name_of, PAGES):
        for name in re.findall(r"-S ['\"]?(?:\w+\.yaml:)?([a-z_.]+)=", text_of(page)):
            assert re.search(rf"(^| ){name}\b", known), (page, name)


def test_the_sources_that_data_md_shows_are_valid(tmp_path):
    """Each YAML block of the page has entries for `sources` in sources.yaml."""
    shown = [block.code for block in BLOCKS if block.page == "docs/data.md" and block.language == "yaml"]
    file = tmp_path / "sources.yaml"
    file.write_text("sources:\n" + "".join(shown))

    sources = read_yaml(file)["sources"]

    assert [source["fetch"]["kind"] for source in sources.values()] == ["datasets", "hub", "mixture"]
    for name in sources:
        types = {
            f"sources.{name}.fetch": AnyFetch,
            f"sources.{name}.train": AnySlice,
            f"sources.{name}.validation": Slice,
            f"sources.{name}.prompts": tuple[str, ...],
        }
        assert find_problems(file, types) == []


def test_pages_install_the_pinned_torch():
    (pinned,) = re.findall(r"^(torch==[\d.]+)", text_of("requirements/bits.txt"), re.M)

    for name in ("README.md", "docs/install.md", ".devcontainer/devcontainer.json"):
        installed = re.findall(r"torch==[\d.]+", text_of(name))
        assert set(installed) == {pinned}, name
