"""README.md, docs/ and data/README.md: their code runs, their figures are current, what they name exists.

Code blocks carry a tag: `run` blocks run here, `slow` blocks run under make test-slow, `parse` blocks are parsed, and
`output` blocks are figures that benchmarks/pages.py writes. Experiments of other pages than README.md take long, so
the `run` blocks of such a page run in order under make test-slow, and those without an experiment here too.
"""

import contextlib
import functools
import importlib
import json
import math
import re
import runpy
import shlex
import subprocess

import pytest
import yaml

from lm.core.files import read_json
from lm.core.params import coerce, find_problems, read_section, read_yaml
from lm.model.config import ModelParams
from lm.model.gemma3 import count_parameters
from lm.text.slices import AnySlice, Slice
from lm.text.sources.kinds import AnyFetch
from lm.train.config import TrainParams
from lm.train.preflight import Plan
from support import ROOT
from support.workspace import Workspace

BLOCK = re.compile(r"^```(\w+)[ \t]*(\w*)\n(.*?)^```", re.M | re.S)
MARKED = re.compile(r"^<!-- figures:[\w-]+ -->\n.*?^<!-- end -->$", re.M | re.S)
PAGES = [
    ROOT / "README.md",
    ROOT / "data" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("extras/*/README.md")),
]
RESULTS = ROOT / "benchmarks" / "results"
TOOLS = runpy.run_path(str(ROOT / "src" / "__main__.py"))["TOOLS"]
OTHERS = [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "faults" / "README.md"]
TOLERANCE = 0.01  # bits per byte, as docs/reproducibility.md says of fast numerics


def name_of(page) -> str:
    return str(page.relative_to(ROOT))


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def cells_of(name: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table after a heading, without its head."""
    section = f"\n{text_of(name)}".split(f"\n{heading}\n")[1]
    rows = re.search(r"^\|.*\n\|[-:| ]+\|\n((?:^\|.*\n)+)", section, re.M)[1].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


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
    tags = {"bash": ("run", "slow", "parse"), "python": ("run", "parse"), "text": ("output",), "yaml": ("parse",)}
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
    """Whether the block is an experiment on another page than README.md, or builds on those of the tutorial."""
    return ("dvc exp run" in block.values[2] and page_of(block) != "README.md") or page_of(block) == "docs/tutorial.md"


HALF = "train.max_tokens=921600", "train.max_tokens=5120"  # half of the default's tokens, and of the small pipeline's


@pytest.mark.parametrize(("language", "tag", "code"), [block for block in blocks("run") if not is_long(block)])
def test_run_blocks_run(workspace, language, tag, code):
    run_block(workspace, language, code.replace(*HALF))


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({page_of(block) for block in blocks("run") if is_long(block)}))
def test_the_run_blocks_of_a_page_with_experiments_run_in_order(finished, tmp_path, page):
    workspace = Workspace(tmp_path, finished)
    if page == "docs/tutorial.md":  # it trains on a hundred times the tokens of the small pipeline
        names = ("batch_tokens", "micro_batch_tokens", "log_every_tokens")
        workspace.change(
            **dict.fromkeys([f"train.{name}" for name in names], 8192), **{"train.eval_every_tokens": 204800}
        )
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


# Figures


def test_output_blocks_are_generated():
    for page in PAGES:
        outside = MARKED.sub("", page.read_text(encoding="utf-8"))
        assert all(tag != "output" for _, tag, _ in BLOCK.findall(outside)), name_of(page)


def test_the_recorded_default_run_is_the_committed_one():
    """A processor without AVX2 writes metrics of its own, so losses agree within the tolerance only."""
    metrics = {}
    for path in (ROOT / "metrics").glob("*.json"):
        metrics |= json.loads(path.read_text())
    recorded = read_json(RESULTS / "default.json")["metrics"]
    for name in ("bits_per_byte", "parameters", "tokens_seen"):
        assert metrics[name] == pytest.approx(recorded[name], abs=TOLERANCE), f"{name}: run `make figures`"


def test_fast_numerics_stay_within_the_tolerance():
    fast = read_json(RESULTS / "fast.json")
    portable = fast.get("portable") or read_json(RESULTS / "default.json")  # of the same commit
    assert abs(fast["metrics"]["bits_per_byte"] - portable["metrics"]["bits_per_byte"]) < TOLERANCE
    assert f"±{TOLERANCE} bits per byte" in text_of("docs/reproducibility.md")


def test_at_most_ten_metrics_are_committed():
    """`dvc metrics diff` must fit a terminal."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].values()
    files = [name for stage in stages for entry in stage.get("metrics", []) for name in entry]
    names = [name for file in files for name in json.loads((ROOT / file).read_text())]
    assert len(names) == len(set(names)) <= 10


def test_training_to_a_loss_used_the_present_recipe():
    found = read_json(RESULTS / "time_to_loss.json")["train"]
    params = read_yaml(ROOT / "params.yaml")["train"] | {"numerics": "fast"}
    of_length = {"max_tokens", "eval_every_tokens", "eval_tokens", "keep_checkpoints"}
    assert {name for name in params if found.get(name) != params[name]} <= of_length | {"spelling_buckets"}
    assert "without sub-token embeddings" in text_of("docs/benchmarks.md")


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
    makefile, sections = (
        text_of("Makefile"),
        read_yaml(ROOT / "params.yaml") | read_yaml(ROOT / "presets.yaml") | read_yaml(ROOT / "sources.yaml"),
    )
    sections["train"] |= read_yaml(ROOT / "runtime.yaml")["train"]
    text = "".join(BLOCK.sub("", page.read_text(encoding="utf-8")) for page in PAGES)
    for target in re.findall(r"`make ([\w-]+)", text):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for path in re.findall(r"`((?:src|extras|tests|benchmarks|\.github)/[\w/.-]+)`", text):
        assert (ROOT / path).exists() or "NAME" in path or path in text_of("dvc.yaml"), path
    for section, name in re.findall(r"`(data|tokenizer|model|local|train|eval)\.(\w+)(?=[`:=])", text):
        assert name in (*sections[section], "bin", "json", "parquet"), name


def test_the_sizes_said_of_the_models_are_counted():
    said = re.findall(r"^  (\w+): +# ([\d.]+) M parameters with (.*?)(?:;|$)", text_of("presets.yaml"), re.M)
    assert [name for name, *_ in said] == ["small", "gpt2_size"]
    for name, millions, vocabulary in said:
        number = re.search(r"[\d,]{3,}", vocabulary)
        vocab_size = int(number[0].replace(",", "")) if number else 50_257
        config = read_section(ROOT / "presets.yaml", f"models.{name}", ModelParams).config(vocab_size)
        assert f"{count_parameters(config)['total'] / 1e6:.1f}" == millions


def size_of_recipe(command: str) -> list[str]:
    """Return the cells of a recipe's row, from its command and the measured speed of the model of the nearest size."""
    files = {name: read_yaml(ROOT / name) for name in ("params.yaml", "presets.yaml", "sources.yaml")}
    for word in shlex.split(command.replace("\\\n", " ")):
        name, is_setting, value = word.partition("=")
        if is_setting:
            file, _, name = name.rpartition(":")
            *sections, last = name.split(".")
            place = functools.reduce(dict.__getitem__, sections, files[file or "params.yaml"])
            place[last] = yaml.safe_load(value)
    params, presets, _ = files.values()
    train = coerce(params["train"], TrainParams, "train", command)
    model = coerce(presets["models"][params["model"]["name"]], ModelParams, "model", command)
    config = model.config(presets["tokenizers"][params["tokenizer"]["name"]].get("vocab_size", 50_257))
    plan = Plan(train, config, train.max_tokens, train.micro_batch_tokens)
    flops = plan.flops_per_step * plan.max_steps
    measured = [each for each in read_json(RESULTS / "train_step.json")["questions"].values() if "tokens_per_s" in each]
    nearest = min(measured, key=lambda each: abs(math.log(each["parameters"] / plan.num_parameters)))
    hours = flops / nearest["tokens_per_s"]["ours"] / nearest["flop_per_token"] / 3600
    return [
        f"{plan.num_parameters / 1e6:.1f} M", f"{plan.max_tokens / 1e6:.0f} M", f"{flops:.1e}",
        f"{plan.memory_bytes / 2**30:.0f} GiB", f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days",
    ]  # fmt: skip


def test_the_sizes_and_times_said_of_the_recipes_are_computed_from_their_commands():
    section = text_of("docs/experiments.md").split("## Longer runs")[1]
    a, b = re.findall(r"^(dvc exp run (?:.*\\\n)*.*)$", section.split("\n## ")[0], re.M)
    c = b.replace("model.name=gpt2_size", "model.name=gemma3_270m").replace("seq_len=1024", "seq_len=512")
    rows = {row[0]: row[1:] for row in cells_of("docs/experiments.md", "## Longer runs")}
    assert rows == {"A": size_of_recipe(a), "B": size_of_recipe(b), "C": size_of_recipe(c)}


def test_the_sources_that_data_md_shows_are_valid(tmp_path):
    """Each YAML block of the page has entries for `sources` in sources.yaml."""
    of_page = [block.values for block in blocks("parse") if page_of(block) == "docs/data.md"]
    shown = [code for language, _, code in of_page if language == "yaml"]
    file = tmp_path / "sources.yaml"
    file.write_text("sources:\n" + "".join(shown))
    sources = read_yaml(file)["sources"]
    assert [source["fetch"]["kind"] for source in sources.values()] == ["hub", "datasets", "mixture"]
    for name in sources:
        parts = {"fetch": AnyFetch, "train": AnySlice, "validation": Slice, "prompts": tuple[str, ...]}
        assert find_problems(file, {f"sources.{name}.{part}": wanted for part, wanted in parts.items()}) == []


def test_names_for_other_code_can_be_imported():
    section = text_of("docs/architecture.md").split("These names are stable")[1].split("\n## ")[0]
    for names, module in re.findall(r"^\| (`.*`) \| `([\w.]+)` \|$", section, re.M):
        for name in re.findall(r"`(\w+)`", names):
            assert hasattr(importlib.import_module(module), name), name


# Words


def test_the_words_that_people_search_for_are_found():
    words = (
        "ablation, bitwise, checkpoint, deterministic, early stopping, fine-tune, gradient accumulation, inference, "
        "mixed precision, overfitting, resume, sampled softmax"
    )
    text = " ".join("".join(text_of(name_of(page)) for page in PAGES if page.parent.name == "docs").lower().split())
    assert [word for word in words.split(", ") if word not in text] == []
