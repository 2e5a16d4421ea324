"""Check every file of the workspace against its record and dvc.lock; with --cache also objects of DVC's cache.

    python src verify
    python src verify --cache exported
    python src verify --recompute --from 0

Every byte is read, because DVC trusts the modification times of files and never reads its cache again. Of the
cache only the objects that dvc.lock or a .dvc file refers to are read; those of other runs are counted. Each check
prints one line: `ok`; `WRONG` with the command that repairs it (run these commands from the top, then verify
again); or `note` for a file that is not made yet or that has changed since. Exit status 4 if anything is wrong.

--recompute also trains one interval between two validations again, chosen at random among those that begin at the
initial weights or at a state that the run kept, and compares weights and optimizer with the recorded digest.
"""

import itertools
import random
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from lm.core.errors import IntegrityError, ParamsError, UserError, command
from lm.core.files import sha256_file
from tools.common import records
from tools.common.arguments import tool_parser
from tools.common.paths import MODEL, PIPELINE, TOKENIZER, TOKENIZER_META
from tools.common.records import Digests, Finding, Record, run_checks


def check_workspace(digests: Digests, with_cache: bool, bar: tqdm) -> Iterator[Finding]:
    """Check finished runs, the outputs that DVC records, the records against each other, and the cache."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    from tools.verify.dvc_outputs import Outputs  # DVC takes a second to import

    try:
        with Repo(".") as repo:
            outputs = Outputs(repo, digests)
            bar.total = outputs.num_bytes(with_cache)
            for done in sorted(Path(".runs").glob("*/done")):  # train publishes them instead of training again
                for finding in run_checks([(records.weights, done / "models" / MODEL.name)], digests):
                    yield finding._replace(advice=f"run `rm -rf {done}`" if finding.fault else "")
            yield from outputs.check_stages()
            for finding in run_checks(records.FILE_CHECKS + records.LINK_CHECKS, digests):
                yield finding._replace(advice=outputs.mend(finding.blamed)) if finding.fault else finding
            if with_cache:
                yield from outputs.check_cache()
    except DvcException as error:
        reason = f"DVC cannot read the pipeline: {' '.join(str(error).split())}"
        raise IntegrityError(f"{PIPELINE}: {reason}; repair the file or restore it with git") from None


def check_export(folder: Path, digests: Digests) -> Iterator[Finding]:
    """Check the tokenizers and the weights of an exported folder, and compare it with the workspace's model."""
    record, meta = folder / MODEL.name, folder / TOKENIZER.name / TOKENIZER_META.name
    if not record.exists():
        raise ParamsError(f"{folder}: has no {record.name}; name a folder that `python src export_hf` wrote")
    checks = [(exported_tokenizer, meta), (records.link(records.tokenizer_of_model), record, meta)]
    checks += [(exported_weights, record), (model_of_export, record, MODEL)]
    for finding in run_checks(checks, digests) if meta.exists() else [Finding(str(meta), "is missing")]:
        yield finding._replace(advice=f"run `python src export_hf {shlex.quote(str(folder))}`" if finding.fault else "")


def exported_tokenizer(digests: Digests, meta: Record) -> Iterator[Finding]:
    """Check the tokenizer of the training, and that the one which transformers opens is made from it."""
    from lm.tokenizer.build import write_for_generation

    folder, findings = meta.path.parent, list(records.tokenizer_files(digests, meta))
    yield from findings
    if any(finding.fault for finding in findings):
        return
    with tempfile.TemporaryDirectory() as temporary:
        write_for_generation(Path(temporary), folder, meta.content["eot_id"])
        for path in sorted(Path(temporary).iterdir()):
            opened = folder.with_name(path.name)
            fault = records.differences({"sha256": digests.of(opened).sha256}, {"sha256": sha256_file(path)})
            yield Finding(f"{opened} (from {folder})", fault)


def exported_weights(digests: Digests, record: Record) -> Iterator[Finding]:
    """Check that config.json and the safetensors hold the model whose weights the record names."""
    from lm.model.weights import save_tensors
    from tools.common.hugging_face import own_record, read_pretrained  # torch and transformers take seconds to import

    folder, fault = record.path.parent, None
    try:
        model = read_pretrained(folder)
        with tempfile.TemporaryDirectory() as temporary:
            sha256 = save_tensors(Path(temporary) / "weights.pt", dict(model.state_dict()))
        own_record(record.path, model, sha256)
    except UserError as error:
        fault = str(error).split(";")[0]
    yield Finding(f"{folder}/model.safetensors, config.json (in {record.path.name})", fault)


def model_of_export(digests: Digests, exported: Record, model: Record) -> Iterator[Finding]:
    """Check that the folder holds the workspace's model."""
    expected = {name: value for name, value in model.content.items() if name != "last"}
    fault = None if exported.content == expected else "records another model"
    yield Finding(f"{exported.path} (from {model.path})", fault)


def show(finding: Finding) -> str:
    """Print a finding on its own line above the progress bar; return "ok", "note" or "WRONG"."""
    result = "WRONG" if finding.fault else "note" if finding.advice else "ok"
    clauses = "; ".join(filter(None, (finding.fault, finding.advice)))
    tqdm.write(f"{result:5}  {finding.subject}" + (f": {clauses}" if clauses else ""))
    return result


@command
def main(argv: list[str]) -> None:
    """Check the workspace, if there is one, and each folder that is named."""
    parser = tool_parser("verify", __doc__)
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER", help="output of `python src export_hf`")
    parser.add_argument("--cache", action="store_true", help="also read the cache objects that dvc.lock refers to")
    parser.add_argument("--recompute", action="store_true", help="also train an interval again and compare its digest")
    parser.add_argument("--from", type=int, dest="start", metavar="STEP", help="begin the interval at this step")
    parser.add_argument("--seed", type=int, help="choose the interval by this seed (a new one each time)")
    args = parser.parse_args(argv)
    if not args.recompute and (args.start, args.seed) != (None, None):
        raise ParamsError("--from and --seed choose what --recompute trains again; add --recompute")
    if not PIPELINE.exists() and not args.folders:
        raise ParamsError(f"{PIPELINE}: missing; run the command at the repository's root, or name an exported folder")
    with tqdm(unit="B", unit_scale=True, desc="verify", leave=False, disable=None) as bar:
        digests = Digests(bar.update)
        workspace = check_workspace(digests, args.cache, bar) if PIPELINE.exists() else ()
        exports = (finding for folder in args.folders for finding in check_export(folder, digests))
        results = Counter(show(finding) for finding in itertools.chain(workspace, exports))
    checked = f"{results.total()} checks, {digests.num_bytes:,} bytes read"
    if results["WRONG"]:
        advice = "run the commands above from the top, then verify again"
        raise IntegrityError(f"{checked}, {results['WRONG']} wrong; {advice}")
    print(f"{checked}, all ok" + (f" except {results['note']} notes" if results["note"] else ""))
    if args.recompute:
        from tools.verify.recompute import recompute  # torch takes seconds to import

        recompute(args.start, random.randrange(10**6) if args.seed is None else args.seed)
