"""Convert a trained model to a folder that transformers loads, or such a folder to a trained model.

    python src export_hf DIR
    python src export_hf --from DIR MODELS

The card, README.md, is written from the files of the run in this folder. transformers then begins texts like
`generate`. Both folders have the tokenizer of the model in `tokenizer/`. An export also has the record of the training,
so that an import restores its files. Any other text-only Gemma 3 can be imported too.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from lm.core.errors import DataError, IntegrityError, ParamsError, exit_with_status
from lm.core.files import atomic_folder, sha256_file, write_json, write_text
from lm.core.params import read_section, read_yaml
from lm.model.gemma3 import Gemma3Model
from lm.model.seen import copy_seen
from lm.model.weights import RECORD, WEIGHTS, check_trained_with, save_tensors
from lm.tokenizer.build import write_from_folder
from lm.tokenizer.load import Tokenizer, load_tokenizer
from tools.export_hf.card import model_card, read_figures
from tools.export_hf.hugging_face import (
    check_reader,
    load_run,
    open_with_transformers,
    read_exported_record,
    read_pretrained,
    weight_files,
    write_model,
)
from tools.record import paths
from tools.record.arguments import tool_parser
from tools.record.lock import read_lock
from tools.record.parameters import SELECTORS, flatten, selected_presets

CARD = "README.md"
IMPORTED_SEQ_LEN = 512  # window in which `eval` scores an imported model, at most


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = tool_parser("export_hf", __doc__)
    parser.add_argument("folder", type=Path, help="the new folder to write")
    parser.add_argument("--from", type=Path, dest="source", help="import this Hugging Face folder into `folder`")
    parser.add_argument("--license", metavar="ID", help="licence of the weights, such as mit, for the card")
    of_checkpoint = parser.add_argument_group("of a checkpoint of the run")
    of_checkpoint.add_argument("--models", type=Path, default=paths.MODELS, help=f"its weights ({paths.MODELS})")
    of_checkpoint.add_argument(
        "--evaluation", type=Path, default=paths.EVALUATION, help=f"their evaluation ({paths.EVALUATION})"
    )
    return parser.parse_args(argv)


def export(args: argparse.Namespace, folder: Path) -> None:
    """Write the best model of args.models, its tokenizer and its card, all or nothing.

    Raise IntegrityError if transformers computes other losses from it than this project's code.
    """
    model, record, tokenizer = load_run(args.models, paths.TOKENIZER)
    params = chosen_params(record)
    figures = read_figures(args.evaluation, record)
    card = model_card(record, params, figures, tokenizer.eot_id, args.license)
    with atomic_folder(folder) as temporary:
        write_model(temporary, model, record, tokenizer)
        copy_seen(args.models, temporary)
        write_text(temporary / CARD, card)
        check_reader(folder, model, open_with_transformers(temporary), tokenizer.eot_id)


def chosen_params(record: dict) -> dict:
    """Return the parameters of the model. Raise IntegrityError if the model was trained with other ones."""
    # Read what the parameter files select.
    params = read_yaml(paths.PARAMS)
    chosen: dict[str, Any] = {selector: read_section(paths.PARAMS, selector, str) for selector in SELECTORS}
    chosen["train"] = params.get("train", {})
    chosen |= selected_presets(params, read_yaml(paths.PRESETS) | read_yaml(paths.SOURCES))

    # Compare it with the record of the model, and with dvc.lock where there is one.
    trained_with = {f"train.{name}": value for name, value in record.items()}
    trained_with |= {f"models.{chosen['model.name']}.{name}": value for name, value in record["config"].items()}
    if paths.LOCK.exists():
        trained_with |= read_lock().params
    for name, value in flatten(chosen).items():
        known = trained_with.get(name, value)
        if value != known:
            raise IntegrityError(f"{name} is {value}, the model was trained with {known}; run `dvc repro`")
    return chosen


def import_model(args: argparse.Namespace, folder: Path) -> None:
    """Write a Hugging Face folder's weights, record and tokenizer as training would have left them."""
    if not args.source.is_dir():
        raise ParamsError(f"--from: {args.source} is not a folder; download the model and name the folder of its files")
    own_record = args.source / RECORD
    has_record = own_record.exists()
    model = read_pretrained(args.source)
    check_reader(folder, model, open_with_transformers(args.source), eot_id=0)
    with atomic_folder(folder) as temporary:
        # Copy the tokenizer. Without a record, tokenizer/ may be left from before the weights were trained elsewhere.
        tokenizer_source = args.source / paths.TOKENIZER.name if has_record else args.source
        copied = temporary / paths.TOKENIZER.name
        copied.mkdir()
        write_from_folder(copied, tokenizer_source)
        tokenizer = load_tokenizer(copied)

        # Write the weights and their record.
        sha256 = save_tensors(temporary / WEIGHTS, dict(model.state_dict()))
        if has_record:
            record = read_exported_record(own_record, model, sha256)
            check_trained_with(tokenizer.sha256, f"{args.source}/tokenizer", args.source, record, "export it again")
            copy_seen(args.source, temporary)
        else:
            record = foreign_record(args.source, model, tokenizer, sha256)
        write_json(temporary / RECORD, record)


def foreign_record(source: Path, model: Gemma3Model, tokenizer: Tokenizer, sha256: str) -> dict:
    """Return the record of a model that was trained elsewhere; unknown values are null."""
    if model.config.vocab_size < tokenizer.vocab_size:
        raise DataError(
            f"{source}: vocab_size is {model.config.vocab_size}; "
            f"it must be at least the tokenizer's {tokenizer.vocab_size}"
        )
    return {
        "config": dataclasses.asdict(model.config),
        "seq_len": min(IMPORTED_SEQ_LEN, model.config.max_seq_len),
        "seed": None,
        "eval_tokens": 0,  # no validation tokens selected this model
        "attend_across_documents": True,  # as transformers computes
        "tokenizer_sha256": tokenizer.sha256,
        "data_sha256": {"train": None, "validation": None},
        "segments": [],
        "imported": {path.name: sha256_file(path) for path in weight_files(source)},
        "best": {"step": 0, "tokens_seen": 0, "val_loss": None, "sha256": sha256},
    }


@exit_with_status
def main(argv: list[str]) -> None:
    """Export data/models or, with --from, import a folder."""
    args = parse(argv)
    folder = args.folder.resolve()
    if folder.exists():
        raise ParamsError(f"{folder}: exists; name a new folder")
    if args.source:
        import_model(args, folder)
    else:
        export(args, folder)
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {num_bytes:,} bytes")
