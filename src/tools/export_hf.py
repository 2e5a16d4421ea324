"""A trained model → a folder that transformers loads, and such a folder → a trained model.

    python src export_hf DIR [--models data/models --tokenizer data/tokenizer]
    python src export_hf --from DIR MODELS [--tokenizer data/tokenizer]

Beside weights, configuration, tokenizer and a model card the folder holds the record of the training,
with which an import gives the very files that were exported. Any other text-only Gemma 3 is imported
with what is known of it: its weights and its tokenizer.
"""

import argparse
import dataclasses
import shutil
import tempfile
from pathlib import Path

import torch
import yaml

from lm.core.errors import DataError, IntegrityError, ParamsError, command
from lm.core.files import atomic_folder, read_json, sha256_file, write_json, write_text
from lm.core.params import read_section, read_yaml
from lm.formats.hugging_face import CONFIG, GENERATION_CONFIG, own_record, read_pretrained, write_pretrained
from lm.formats.hugging_face import WEIGHTS as SAFETENSORS
from lm.model.gemma3 import Gemma3Model, ModelConfig, ModelParams, count_parameters
from lm.model.weights import RECORD, WEIGHTS, WEIGHTS_DIGITS, check_trained_with, load_trained, save_tensors
from lm.tokenizer.build import CONFIG as TOKENIZER_CONFIG
from lm.tokenizer.build import write_huggingface
from lm.tokenizer.load import BACKEND, META, Tokenizer, load_tokenizer

CARD = "README.md"
SELECTORS = (("data", "source", "sources"), ("tokenizer", "name", "tokenizers"), ("model", "name", "models"))
RECORDED = ("seq_len", "seed", "eval_tokens")  # of the section train, in model.json too
METRICS = ("train", "eval", "data")  # timing.json holds the wall clock, which belongs to no model
CARD_TEXT = """\
---
library_name: transformers
pipeline_tag: text-generation
---

# {title}

A Gemma 3 of {parameters:,} parameters ({n_layer} layers, width {d_model}, {vocab_size:,} entries), trained
on {tokens:,} tokens of `{source}`. Documents stood one behind the other, each ended by the id {eot_id}; so a
prompt begins with it:

```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForCausalLM.from_pretrained(".")
ids = torch.tensor([[{eot_id}, *tokenizer("", add_special_tokens=False)["input_ids"]]])
settings = {{"max_new_tokens": 100, "do_sample": True, "temperature": 0.8, "top_k": 50}}
print(tokenizer.decode(model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, 1:]))
```

## Metrics

Losses are in nats a token; those of `eval` are over the whole validation file.

{metrics}

## Data

{hashes}

## Parameters

```yaml
{params}```
"""


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = argparse.ArgumentParser("python src export_hf", description="To transformers and back.")
    parser.add_argument("folder", type=Path, help="what is written")
    parser.add_argument("--from", type=Path, dest="source", help="a Hugging Face folder: import it into `folder`")
    parser.add_argument("--models", type=Path, default="data/models")
    parser.add_argument("--tokenizer", type=Path, default="data/tokenizer")
    parser.add_argument("--metrics", type=Path, default="metrics", help="for the model card")
    parser.add_argument("--params", type=Path, default="params.yaml", help="for the model card")
    parser.add_argument("--seq_len", type=int, default=512, help="window to score a foreign model in (512)")
    return parser.parse_args(argv)


def check_replaceable(folder: Path, names: set[str]) -> None:
    """Raise ParamsError unless a folder is absent, empty, or an earlier export, nothing added."""
    if not folder.exists():
        return
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
    strange = sorted(found - names)
    if strange or (found and RECORD not in found):
        what = f"holds {strange[0]}" if strange else f"has no {RECORD}"
        raise ParamsError(f"{folder}: {what}, so it is no earlier export; name another folder")


def export(folder: Path, args) -> None:
    """Write the best model of args.models, its tokenizer and its card, whole or not at all."""
    model, record = load_trained(args.models, torch.device("cpu"))
    tokenizer = load_tokenizer(args.tokenizer)
    check_trained_with(tokenizer.sha256, tokenizer.folder, args.models, record)
    params, figures = chosen_params(args.params, record), read_figures(args.metrics, record)
    card = model_card(record, params, figures, tokenizer)
    copied = [META, *tokenizer.meta["files"]]
    check_replaceable(folder, {CONFIG, GENERATION_CONFIG, SAFETENSORS, RECORD, CARD, *copied})
    with atomic_folder(folder) as temporary:
        for name in copied:
            shutil.copyfile(args.tokenizer / name, temporary / name)
        write_pretrained(temporary, model, tokenizer.eot_id)
        write_json(temporary / RECORD, {name: value for name, value in record.items() if name != "last"})
        write_text(temporary / CARD, card)


def chosen_params(path: Path, record: dict) -> dict:
    """The part of params.yaml that made the model; IntegrityError if the model was made by another."""
    params, chosen = read_yaml(path), {}
    for section, key, book in SELECTORS:
        name = read_section(path, f"{section}.{key}", str)
        chosen |= {section: {key: name}, book: {name: params.get(book, {}).get(name)}}
    chosen["train"] = params.get("train", {})
    shape = read_section(path, f"models.{chosen['model']['name']}", ModelParams)
    found = dataclasses.asdict(shape) | {name: chosen["train"].get(name) for name in RECORDED}
    for name, value in found.items():
        if value != (recorded := {**record["config"], **record}[name]):
            raise IntegrityError(
                f"{path}: {name} is {value}, the model was trained with {recorded}; run `dvc repro`, or name "
                "the params.yaml of that run"
            )
    return chosen


def read_figures(metrics: Path, record: dict) -> dict:
    """The metrics by file, under dotted names; IntegrityError if they are another model's."""
    figures = {name: flatten(read_json(metrics / f"{name}.json")) for name in METRICS}
    found, recorded = figures["train"].get("best_val_loss"), record["best"]["val_loss"]
    if found != recorded:
        raise IntegrityError(
            f"{metrics}/train.json: best_val_loss is {found}, the model's was {recorded}; run `dvc repro`"
        )
    evaluated, weights = figures["eval"].pop("weights_sha256", None), record["best"]["sha256"]
    if evaluated != weights[:WEIGHTS_DIGITS]:
        raise IntegrityError(f"{metrics}/eval.json: is of the model {evaluated}, not {weights}; run `dvc repro`")
    return figures


def flatten(value: dict, prefix: str = "") -> dict:
    """{"a": {"b": 1}} → {"a.b": 1}."""
    flat = {}
    for name, part in value.items():
        flat |= flatten(part, f"{prefix}{name}.") if isinstance(part, dict) else {prefix + name: part}
    return flat


def model_card(record: dict, params: dict, figures: dict, tokenizer: Tokenizer) -> str:
    """README.md: what the model is, how it is used, its metrics, its data, its parameters."""
    config, source = ModelConfig(**record["config"]), params["data"]["source"]
    hashes = {
        "training tokens": record["data_sha256"]["train"],
        "validation tokens": record["data_sha256"]["validation"],
        "tokenizer": record["tokenizer_sha256"],
        WEIGHTS: record["best"]["sha256"],
    }
    return CARD_TEXT.format(
        title=f"{params['model']['name']} on {source}",
        parameters=count_parameters(config)["total"],
        n_layer=config.n_layer,
        d_model=config.d_model,
        vocab_size=config.vocab_size,
        tokens=record["best"]["tokens_seen"],
        source=source,
        eot_id=tokenizer.eot_id,
        metrics="\n\n".join(table(name, "value", values) for name, values in figures.items()),
        hashes=table("what", "SHA-256", hashes),
        params=yaml.safe_dump(params, sort_keys=False, allow_unicode=True),
    )


def table(left: str, right: str, rows: dict) -> str:
    """Two columns of Markdown; numbers keep six significant digits."""
    cells = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in rows.items()}
    return "\n".join([f"| {left} | {right} |", "|---|---|", *(f"| {n} | {v} |" for n, v in cells.items())])


def import_model(source: Path, folder: Path, args) -> None:
    """Write a Hugging Face folder's weights and their record as training would have left them."""
    check_replaceable(folder, set())
    model = read_pretrained(source)
    with atomic_folder(folder) as temporary:
        sha256 = save_tensors(temporary / WEIGHTS, dict(model.state_dict()))
        if (source / RECORD).exists():
            record = own_record(source / RECORD, model, sha256)
        else:
            record = foreign_record(source, model, sha256, args)
        write_json(temporary / RECORD, record)


def foreign_record(source: Path, model: Gemma3Model, sha256: str, args) -> dict:
    """A record of a model that was trained elsewhere; what no one here knows is null."""
    limit = model.config.max_seq_len
    if not 1 <= args.seq_len <= limit:
        raise ParamsError(f"--seq_len is {args.seq_len}, needed: from 1 to the model's max_seq_len ({limit})")
    tokenizer = load_tokenizer(args.tokenizer)
    check_same_tokenizer(source, tokenizer)
    if model.config.vocab_size < tokenizer.vocab_size:
        raise DataError(
            f"{source}: vocab_size is {model.config.vocab_size}, needed: at least the tokenizer's "
            f"{tokenizer.vocab_size}"
        )
    return {
        "config": dataclasses.asdict(model.config),
        "seq_len": args.seq_len,
        "seed": None,
        "eval_tokens": 0,  # none of them chose this model
        "tokenizer_sha256": tokenizer.sha256,
        "data_sha256": {"train": None, "validation": None},
        "segments": [],
        "imported": {path.name: sha256_file(path) for path in sorted(source.glob("*.safetensors"))},
        "best": {"step": 0, "tokens_seen": 0, "val_loss": None, "sha256": sha256},
    }


def check_same_tokenizer(source: Path, tokenizer: Tokenizer) -> None:
    """Raise IntegrityError unless a folder's tokenizer is the given one, as it lies or rewritten."""
    files = (BACKEND, TOKENIZER_CONFIG)
    for name in files:
        if not (source / name).exists():
            raise DataError(f"{source}: no {name}, which tells the ids that the model knows")
    with tempfile.TemporaryDirectory() as copy, tempfile.TemporaryDirectory() as rewritten:
        for name in files:
            shutil.copyfile(source / name, Path(copy) / name)
        found = write_huggingface(Path(rewritten), Path(copy))["files"][BACKEND]
    if tokenizer.meta["files"].get(BACKEND) not in (found, sha256_file(source / BACKEND)):
        raise IntegrityError(
            f"{source}: its tokenizer is another than {tokenizer.folder}; choose that one as "
            "tokenizer.name in params.yaml and run `dvc repro make_tokenizer`"
        )


@command
def main(argv: list[str]) -> None:
    """Export data/models or, with --from, import a folder."""
    args = parse(argv)
    folder = args.folder.resolve()
    if args.source:
        import_model(args.source, folder, args)
    else:
        export(folder, args)
    print(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()):,} bytes")
