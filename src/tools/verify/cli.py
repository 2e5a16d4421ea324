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
from lm.core.files import read_json, sha256_file
from tools.common.arguments import tool_parser
from tools.common.paths import MODEL, PARAMS, PIPELINE, TOKENIZER, TOKENIZER_META
from tools.verify.records import FILES, ORIGINS, Digests, Finding, Link, check_links


def check_workspace(digests: Digests, with_cache: bool) -> Iterator[Finding]:
    """Check finished runs, the outputs that DVC records, the records against each other, the model, and the cache."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    from tools.verify.dvc_outputs import Outputs  # DVC takes a second to import

    try:
        with Repo(".") as repo:
            outputs = Outputs(repo, digests)
            for done in sorted(Path(".runs").glob("*/done")):  # train publishes them instead of training again
                best = Link(done / MODEL.relative_to("data"), "best.sha256", done / "models/best_model_params.pt")
                for finding in check_links([best], digests):
                    yield finding._replace(advice=f"run `rm -rf {done}`" if finding.fault else "")
            yield from outputs.check_stages()
            for finding in check_links(FILES + ORIGINS, digests):
                yield finding._replace(advice=outputs.mend(finding.blamed)) if finding.fault else finding
            if MODEL.exists() and not outputs.wrong and "train" not in outputs.stale:
                from tools.verify.recompute import fault_of_model  # torch takes seconds to import

                # DVC's run cache holds what others wrote: its record of these parameters may name any model.
                fault = fault_of_model(read_json(MODEL))
                yield Finding(f"{MODEL} (from {PARAMS})", fault, advice="run `dvc repro -fs train`" if fault else "")
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
    model, vocabulary = read_json(record), read_json(meta)
    links = [Link(meta, f"files.{name}", meta.with_name(name)) for name in vocabulary["files"]]
    findings = list(check_links([*links, Link(record, "tokenizer_sha256", meta)], digests))
    if not any(finding.fault for finding in findings):
        findings += check_generation_files(folder, vocabulary["eot_id"])
    findings.append(Finding(f"{folder}/model.safetensors, config.json (in {record.name})", fault_of_weights(record)))
    if MODEL.exists():
        is_ours = model == {name: value for name, value in read_json(MODEL).items() if name != "last"}
        findings.append(Finding(f"{record} (from {MODEL})", None if is_ours else "records another model"))
    for finding in findings:
        yield finding._replace(advice=f"run `python src export_hf {shlex.quote(str(folder))}`" if finding.fault else "")


def check_generation_files(folder: Path, eot_id: int) -> Iterator[Finding]:
    """Check that the tokenizer which transformers opens is made from the one of the training."""
    from lm.tokenizer.build import write_for_generation

    with tempfile.TemporaryDirectory() as temporary:
        write_for_generation(Path(temporary), folder / TOKENIZER.name, eot_id)
        for path in sorted(Path(temporary).iterdir()):
            exported = folder / path.name
            is_same = exported.exists() and sha256_file(exported) == sha256_file(path)
            yield Finding(f"{exported} (from {folder / TOKENIZER.name})", None if is_same else "is another one")


def fault_of_weights(record: Path) -> str | None:
    """Return a clause if config.json and the safetensors do not hold the model whose weights the record names."""
    from lm.model.weights import save_tensors
    from tools.common.hugging_face import own_record, read_pretrained  # torch and transformers take seconds to import

    try:
        model = read_pretrained(record.parent)
        with tempfile.TemporaryDirectory() as temporary:
            sha256 = save_tensors(Path(temporary) / "weights.pt", dict(model.state_dict()))
        own_record(record, model, sha256)
    except UserError as error:
        return str(error).split(";")[0]


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
        workspace = check_workspace(digests, args.cache) if PIPELINE.exists() else ()
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
