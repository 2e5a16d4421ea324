"""Check every file of the workspace against its record, dvc.lock and, with --cache, DVC's cache.

    python src verify
    python src verify --cache exported

Every byte is read, for DVC trusts the times of files and never looks into its cache again. One line
a thing checked: `ok`; `WRONG`, and the command that mends it (run them from the top, then verify
again); or `note`, what is not made yet or has changed since. Exit status 4 if anything is wrong.
"""

import argparse
import hashlib
import io
import itertools
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from lm.core.errors import IntegrityError, ParamsError, UserError, command
from tools.common.paths import PLACES
from tools.common.records import (
    Digests,
    Finding,
    Record,
    check_chain,
    run_checks,
    tokenizer_files,
    tokenizer_of_model,
    weights,
)

PIPELINE = Path("dvc.yaml")
RUNS = Path(".runs")
RECORD = "model.json"


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments, paths as Path."""
    parser = argparse.ArgumentParser(
        prog="python src verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER", help="what `python src export_hf` wrote")
    parser.add_argument("--cache", action="store_true", help="also read every object that dvc.lock refers to")
    return parser.parse_args(argv)


def check_workspace(digests: Digests, with_cache: bool, bar: tqdm) -> Iterator[Finding]:
    """Finished runs, what DVC records, what the records say of each other, the cache."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    from tools.verify.dvc_outputs import Outputs  # DVC takes a second to import

    try:
        with Repo(".") as repo:
            outputs = Outputs(repo, digests)
            bar.total = outputs.num_bytes(with_cache)
            yield from check_runs(digests)
            yield from outputs.check_stages()
            for finding in check_chain(PLACES, digests):
                yield finding._replace(advice=outputs.mend(finding.blamed)) if finding.fault else finding
            if with_cache:
                yield from outputs.check_cache()
    except DvcException as error:
        reason = " ".join(str(error).split())
        raise IntegrityError(
            f"{PIPELINE}: DVC cannot read the pipeline: {reason}; mend that, or bring it back with git"
        ) from None


def check_runs(digests: Digests) -> Iterator[Finding]:
    """Finished runs, which the stage train publishes again rather than train again."""
    for done in sorted(RUNS.glob("*/done")):
        for finding in run_checks([(weights, done / "models" / RECORD)], digests):
            yield finding._replace(advice=f"run `rm -rf {done}`" if finding.fault else "")


def check_export(folder: Path, digests: Digests) -> Iterator[Finding]:
    """An exported folder: its tokenizer, its weights, and whether its model is the one that lies there."""
    record, meta = folder / RECORD, folder / "meta.json"
    if not record.exists():
        raise ParamsError(f"{folder}: has no {RECORD}; name a folder that `python src export_hf` wrote")
    checks = [
        (tokenizer_files, meta),
        (tokenizer_of_model, record, meta),
        (exported_weights, record),
        (model_of_export, record, PLACES.models / RECORD),
    ]
    findings = run_checks(checks, digests) if meta.exists() else [Finding(str(meta), "is missing")]
    for finding in findings:
        yield finding._replace(advice=f"run `python src export_hf {shlex.quote(str(folder))}`" if finding.fault else "")


def exported_weights(digests: Digests, record: Record) -> Iterator[Finding]:
    """config.json and the safetensors are the model whose weights the record names."""
    from lm.formats.hugging_face import own_record, read_pretrained  # torch and transformers take seconds to import

    folder, fault = record.path.parent, None
    try:
        model = read_pretrained(folder)
        own_record(record.path, model, hash_of_saved(dict(model.state_dict())))
    except UserError as error:
        fault = str(error).split(";")[0]
    yield Finding(f"{folder}/model.safetensors, config.json (in {RECORD})", fault)


def hash_of_saved(weights: dict) -> str:
    """SHA-256 of the file that training would have saved these weights in."""
    import torch

    sink = HashSink()
    torch.save(weights, sink)
    return sink.sha256.hexdigest()


class HashSink(io.RawIOBase):
    """A file that keeps nothing of what is written to it but the hash."""

    def __init__(self):
        self.sha256 = hashlib.sha256()

    def write(self, content) -> int:
        self.sha256.update(content)
        return len(content)


def model_of_export(digests: Digests, exported: Record, model: Record) -> Iterator[Finding]:
    """The folder holds the model that lies in the workspace."""
    found = {name: value for name, value in model.content.items() if name != "last"}
    fault = None if exported.content == found else "is of another model"
    yield Finding(f"{exported.path} (from {model.path})", fault)


def show(finding: Finding) -> str:
    """Print a finding on a line of its own, above the bar; return its kind."""
    kind = "WRONG" if finding.fault else "note" if finding.advice else "ok"
    clauses = [clause for clause in (finding.fault, finding.advice) if clause]
    tqdm.write(f"{kind:5}  {finding.subject}" + (f": {'; '.join(clauses)}" if clauses else ""))
    return kind


@command
def main(argv: list[str]) -> None:
    """Check the workspace, if there is one, and each folder that is named."""
    args = parse(argv)
    if not PIPELINE.exists() and not args.folders:
        raise ParamsError(f"{PIPELINE}: is not here; run this in the repository's folder, or name an exported folder")
    with tqdm(unit="B", unit_scale=True, desc="verify", leave=False, disable=None) as bar:
        digests = Digests(bar.update)
        workspace = check_workspace(digests, args.cache, bar) if PIPELINE.exists() else ()
        exports = (finding for folder in args.folders for finding in check_export(folder, digests))
        kinds = Counter(show(finding) for finding in itertools.chain(workspace, exports))
    checked = f"{kinds.total()} things checked, {digests.num_bytes:,} bytes"
    if kinds["WRONG"]:
        raise IntegrityError(
            f"{checked}, {kinds['WRONG']} wrong; run what stands there, from the top, and verify again"
        )
    print(f"{checked}, all ok" + (f" but for {kinds['note']} notes" if kinds["note"] else ""))
