"""`python src use`: recipes pass the check, train, keep comments; what is wrong writes nothing."""

import json
import re
import subprocess

import pytest
import torch
import yaml

from lm.core.files import read_json
from lm.core.params import coerce, read_yaml
from lm.model.gemma3 import ModelConfig
from lm.train.config import TrainParams
from lm.train.preflight import GIB, Plan, check_lengths
from support import ROOT
from support.recipe_cases import NUM_STEPS, RECIPES, apply, recipe_folder, train_small, write_own_text
from support.refusal import files_below, refused
from support.stages import COPIED, change_params
from tools import use
from tools.common.parameters import flatten
from tools.common.problems import find_all_problems
from tools.export_hf import cli as export_hf

RESULTS = ROOT / "benchmarks" / "results"
VOCABULARY = {"bpe": 16384, "gpt2": 50257, "gemma3": 262144, "folder": 16384}  # entries; of a folder: the default model


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = recipe_folder(tmp_path / "repository")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return folder


def comments(folder) -> list[str]:
    """Return the comments of the parameter files, in their order."""
    texts = [(folder / name).read_text() for name in COPIED]
    return [comment.strip() for text in texts for comment in re.findall(r"(?:^|\s)# .*$", text, re.M)]


def state(folder) -> dict:
    """Return file → name → value of the parameter files."""
    return {name: flatten(read_yaml(folder / name)) for name in COPIED}


def comment_of(name: str) -> dict[str, str]:
    """Return the lines of a recipe's comment by their first word: For, Time, Memory, Run and so on."""
    _, *lines = use.read_comment(ROOT / "recipes" / f"{name}.yaml")
    return dict(line.split(": ", 1) for line in lines)


# Recipes.


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_holds_what_differs_passes_the_check_and_keeps_comments(folder, capsys, name):
    before = state(folder)
    comments_before = comments(folder)
    lines_before = {file: (folder / file).read_text().splitlines() for file in COPIED}
    apply(name)
    said = capsys.readouterr().out
    after = state(folder)
    assert find_all_problems() == []

    # Every value of the recipe is there now, was not before, and is named in what `use` prints.
    recipe = {file: flatten(values) for file, values in read_yaml(ROOT / "recipes" / f"{name}.yaml").items()}
    for file, values in recipe.items():
        for key, value in values.items():
            assert after[file][key] == value and before[file].get(key, "none") != value, key
            entry = ".".join(key.split(".")[:2])
            assert f"{file}: {key}  " in said or f"{file}: {entry}  is new" in said, key

    # No other line differs, and every comment is still there.
    for file, lines in lines_before.items():
        lines_after = (folder / file).read_text().splitlines()
        replaced = [line for line in lines if line not in lines_after]
        assert len(replaced) == len([key for key in recipe.get(file, {}) if key in before[file]]), replaced
    kept = iter(comments(folder))
    assert all(comment in kept for comment in comments_before)
    assert said.splitlines()[-2:] == ["next: dvc exp run", "undo: make back"]


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "fine_tuning"])
def test_a_recipe_trains_for_a_few_steps_on_small_text(folder, name):
    apply(name)
    write_own_text(folder)
    train_small(folder)
    chosen = read_yaml("params.yaml")
    model = read_json("data/models/model.json")
    assert model["last"]["step"] == NUM_STEPS and 0 < model["last"]["val_loss"] < 20
    assert model["segments"][-1]["numerics"] == chosen["train"]["numerics"]
    assert read_json("data/raw/manifest.json")["source"] == chosen["data"]["source"]
    assert 0 < read_json("metrics/eval.json")["bits_per_byte"] < 20


def test_a_model_is_fine_tuned_as_its_recipe_says(folder):
    apply("own_text")
    write_own_text(folder)
    train_small(folder)
    first = read_json("data/models/model.json")
    assert export_hf.main(["exported"]) == 0
    assert export_hf.main(["--from", "exported", "data/start"]) == 0
    assert (
        "python src export_hf exported && python src export_hf --from exported data/start"
        in comment_of("fine_tuning")["First"]
    )

    apply("fine_tuning")
    write_own_text(folder, seed=9)
    train_small(folder)
    tuned = read_json("data/models/model.json")
    assert tuned["tokenizer_sha256"] == first["tokenizer_sha256"]
    assert tuned["init_sha256"] and tuned["data_sha256"] != first["data_sha256"]
    assert tuned["last"]["val_loss"] < first["last"]["val_loss"] + 0.2


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_fits_together_and_its_comment_says_what_the_plan_says(folder, name):
    apply(name)
    params = read_yaml("params.yaml")
    models = read_yaml("presets.yaml")["models"]
    model = params["model"]["name"]
    train = coerce(params["train"], TrainParams, "train", "params.yaml")
    check_lengths("params.yaml", train.seq_len, model, models[model]["max_seq_len"])
    config = ModelConfig(**models[model], vocab_size=VOCABULARY[params["tokenizer"]["name"]])
    said = comment_of(name)
    on_gpu = "GPU" in said["For"]
    is_bfloat16 = on_gpu and train.numerics == "fast"
    where = ("cuda" if on_gpu else "cpu", torch.bfloat16 if is_bfloat16 else torch.float32)
    plan = Plan(train, config, train.max_tokens, train.micro_batch_tokens, 1, *where)
    assert {"For", "Time", "Memory", "Run"} <= set(said)
    (memory,) = re.findall(r"^estimated ([\d.]+) GiB", said["Memory"])
    assert float(memory) == pytest.approx(plan.memory_bytes / GIB, rel=0.06)
    words = f"{said['For']} {said['Memory']}"
    sizes = [(gb, 1.0) for gb in re.findall(r"a GPU of (\d+) GB|a GPU of (\d+) to", words) for gb in gb if gb]
    sizes += [(gb, 0.5) for gb in re.findall(r"On (\d+) GB, halve train.micro_batch_tokens", words)]
    sizes += [(gb, 2.0) for gb in re.findall(r"with (\d+) GB, double it", words)]
    for gigabytes, factor in sizes:
        tokens = int(train.micro_batch_tokens * factor)
        needed = Plan(train, config, train.max_tokens, tokens, 1, *where).memory_bytes
        assert needed < float(gigabytes) * 1e9, (gigabytes, factor)
    (title,) = use.read_comment(ROOT / "recipes" / f"{name}.yaml")[:1]
    for millions in re.findall(r"([\d.]+) M parameters", title):
        assert float(millions) == pytest.approx(plan.num_parameters / 1e6, rel=0.01)
    pattern = r"estimated ([\d.]+) (minutes|hours) where \w+ GPU sustains (\d+) TFLOP/s \(([\d.]+e\d+) FLOP\)"
    for duration, unit, rate, flops in re.findall(pattern, said["Time"]):
        work = plan.flops_per_step * plan.max_steps
        assert float(flops) == pytest.approx(work, rel=0.02)
        seconds = float(duration) * {"minutes": 60, "hours": 3600}[unit]
        assert seconds == pytest.approx(work / (float(rate) * 1e12), rel=0.06)


CARDS = re.findall(
    r"^\| (\d+) GB \| `(\w+)`.*? \| (?:`train.micro_batch_tokens=(\d+)`|–) \| ([\d.]+) GiB \|$",
    (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8"),
    re.M,
)


def test_the_page_about_gpus_names_cards():
    assert {row[0] for row in CARDS} == {"8", "12", "24", "80"}


@pytest.mark.parametrize(("gigabytes", "name", "micro_batch_tokens", "estimate"), CARDS)
def test_a_recipe_fits_into_the_memory_of_the_card_that_the_page_about_gpus_names(
    folder, gigabytes, name, micro_batch_tokens, estimate
):
    apply(name)
    if micro_batch_tokens:
        change_params(folder, {"train.micro_batch_tokens": int(micro_batch_tokens)})
    params = read_yaml("params.yaml")
    train = coerce(params["train"], TrainParams, "train", "params.yaml")
    model = read_yaml("presets.yaml")["models"][params["model"]["name"]]
    config = ModelConfig(**model, vocab_size=VOCABULARY[params["tokenizer"]["name"]])
    dtype = torch.bfloat16 if train.numerics == "fast" else torch.float32

    plan = Plan(train, config, train.max_tokens, train.micro_batch_tokens, 1, "cuda", dtype)

    assert float(estimate) == pytest.approx(plan.memory_bytes / GIB, abs=0.06)
    assert plan.memory_bytes < float(gigabytes) * 1e9


def test_what_was_measured_in_fast_numerics_is_what_the_results_say():
    said = comment_of("fast_cpu")
    seconds = [float(number) for number in re.findall(r"(\d+) (?:seconds|\(measured)", said["Time"])]
    losses = [float(number) for number in re.findall(r"\d\.\d+", said["Run"])]
    runs = [read_json(RESULTS / f"{name}.json")["metrics"] for name in ("fast", "default")]
    for run, time, loss in zip(runs, seconds, losses, strict=True):
        assert time == pytest.approx(run["train_seconds"], rel=0.1)
        assert loss == pytest.approx(run["bits_per_byte"], abs=0.005)


def first_sentence(text: str) -> str:
    return text.split(". ")[0].rstrip(".")


def test_the_page_of_the_recipes_has_a_row_for_each():
    """A row has the first sentences of the recipe's comment."""
    page = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    rows = []
    for name in RECIPES:
        (title,) = use.read_comment(ROOT / "recipes" / f"{name}.yaml")[:1]
        said = comment_of(name)
        sentences = [title, *(said[word] for word in ("For", "Time", "Memory", "Run"))]
        rows.append(f"| [{name}]({name}.yaml) | {' | '.join(map(first_sentence, sentences))} |")
    found = [line for line in page.splitlines() if line.startswith("| [")]
    assert found == rows


# The command.


def test_without_a_name_the_recipes_are_listed(folder, capsys):
    assert use.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == RECIPES
    for name, line in zip(RECIPES, lines, strict=True):
        assert line.endswith(use.read_comment(folder / "recipes" / f"{name}.yaml")[0])


def test_of_two_recipes_the_second_is_on_top_and_a_second_use_changes_nothing(folder, capsys):
    assert use.main(["small_gpu", "own_text"]) == 0
    params = read_yaml("params.yaml")
    assert (params["data"]["source"], params["model"]["name"]) == ("local", "small")
    assert "sampled_vocab_size: null " in (folder / "params.yaml").read_text()
    assert "params.yaml: data.source  torch_headers -> local\n" in capsys.readouterr().out
    before = files_below(folder)
    assert use.main(["small_gpu", "own_text"]) == 0
    assert "All files already have these values." in capsys.readouterr().out
    assert files_below(folder) == before


def test_own_values_stay_and_are_named(folder, capsys):
    for command in (
        ["init", "-q"],
        ["add", *COPIED],
        ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    apply("fast_cpu")
    assert "differed" not in capsys.readouterr().out
    change_params(folder, {"train.seed": 7})
    apply("own_text")
    assert "params.yaml differed from the last commit before" in capsys.readouterr().out
    params = read_yaml("params.yaml")
    assert (params["train"]["seed"], params["train"]["numerics"], params["data"]["source"]) == (7, "fast", "local")


@pytest.mark.parametrize("before", [None, {}], ids=["null", "empty"])
def test_a_recipe_may_fill_a_value_that_was_null_or_empty(folder, capsys, before):
    split = read_yaml("sources.yaml")["sources"]["local"]["fetch"]["split"]
    recipe = {"sources.yaml": {"sources": {"local": {"fetch": {"split": split}}}}}
    (folder / "recipes" / "mine.yaml").write_text(yaml.safe_dump(recipe))
    change_params(folder, {"sources.local.fetch.split": before})
    apply("mine")
    said = capsys.readouterr().out
    name = "sources.yaml: sources.local.fetch.split"
    assert f"{name}  {json.dumps(before)} -> (none)\n" in said
    assert f"{name}.validation_fraction  (none) -> {split['validation_fraction']}\n" in said
    assert read_yaml("sources.yaml")["sources"]["local"]["fetch"]["split"] == split


def test_long_values_stay_on_their_line(folder):
    prompt = "Once upon a time, " * 20
    path = folder / "sources.yaml"
    path.write_text(path.read_text().replace("Once upon a time", prompt))
    apply("own_text")
    assert f'    - "{prompt}"\n' in path.read_text()


WRONG = {
    "an unknown key": (
        "params.yaml:\n  train:\n    seqlen: 64\n",
        "recipes/mine.yaml: params.yaml: train.seqlen is unknown; the nearest valid name is train.seq_len",
    ),
    "an unknown section": (
        "params.yaml:\n  training:\n    seq_len: 64\n",
        "recipes/mine.yaml: params.yaml: training is unknown; the nearest valid name is train",
    ),
    "an unknown file": ("dvc.yaml:\n  stages: 1\n", "recipes/mine.yaml: dvc.yaml is none of the files params.yaml, "),
    "no sections": ("params.yaml: 3\n", "recipes/mine.yaml: params.yaml is 3, not a mapping"),
    "a wrong value": (
        "runtime.yaml:\n  train:\n    num_processes: 1\nparams.yaml:\n  train:\n    seq_len: 0\n",
        "params.yaml: train.seq_len is 0; it must be at least 1; nothing was written",
    ),
    "a wrong type": ("params.yaml:\n  train: 5\n", "params.yaml: train is 5, not a mapping; nothing was written"),
    "values that do not fit": (
        "params.yaml:\n  train:\n    seq_len: 300\n",
        "params.yaml: train.micro_batch_tokens is 2048; it must be a multiple of seq_len 300; nothing was written",
    ),
    "a name that selects nothing": (
        "params.yaml:\n  model:\n    name: huge\n",
        "presets.yaml: models.huge is missing; there are: tiny, ",
    ),
    "an incomplete entry": (
        "params.yaml:\n  model:\n    name: mine\npresets.yaml:\n  models:\n    mine:\n      n_layer: 2\n",
        "presets.yaml: models.mine.max_seq_len is missing; give it a value; nothing was written",
    ),
    "a key twice": (
        "params.yaml:\n  train:\n    seed: 1\n    seed: 2\n",
        "recipes/mine.yaml: line 4: found duplicate key",
    ),
    "no YAML": ("params.yaml: [\n", "recipes/mine.yaml: not valid YAML"),
    "nothing": ("# Only a comment.\n", "recipes/mine.yaml: the top level must be a mapping"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_recipe_is_one_sentence_and_writes_nothing(folder, capsys, case):
    content, sentence = WRONG[case]
    (folder / "recipes" / "mine.yaml").write_text(content)
    before = files_below(folder)
    status = use.main(["own_text", "mine"])
    refused(status, capsys.readouterr().err, 2, sentence)
    assert files_below(folder) == before


def test_an_unknown_name_is_one_sentence_and_writes_nothing(folder, capsys):
    before = files_below(folder)
    for name in ("tinystory_gpt2", "../recipes/own_text", "own_text.yaml", ""):
        status = use.main(["fast_cpu", name])
        refused(status, capsys.readouterr().err, 2, f"there is no recipe {name!r}; the nearest is ")
    assert files_below(folder) == before


def test_a_file_that_was_wrong_before_is_named(folder, capsys):
    change_params(folder, {"train.peak_lr": -1})
    before = files_below(folder)
    refused(use.main(["own_text"]), capsys.readouterr().err, 2, "train.peak_lr is -1.0; it must be above 0")
    assert files_below(folder) == before
