"""Upload an exported folder to the Hugging Face hub, after checking that it is what export_hf wrote.

    hf auth login                                        # or set HF_TOKEN to a token that may write
    python src publish exported OWNER/NAME --create --private
    python src publish exported OWNER/NAME               # again: uploads what has changed

The weights must have the hash in model.json, and every file but the card must be the one that follows from them. A file
that is not part of an export is refused, so nothing else is uploaded. Edit the card as you like, but leave the hash of
the weights in it. All files arrive in one commit; other files of the repository stay.
"""

import argparse
import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import huggingface_hub as hf
from huggingface_hub import constants, errors

from lm.core.errors import EnvironmentFailure, IntegrityError, ParamsError, command
from lm.core.files import sha256_file
from lm.formats.hugging_face import own_record, read_pretrained
from lm.model.weights import RECORD, WEIGHTS, check_trained_with, save_tensors
from lm.text.sources.hub import check_repository
from lm.tokenizer.load import load_tokenizer
from tools.common.arguments import tool_parser
from tools.common.export import write_model
from tools.common.paths import TOKENIZER

CARD = constants.REPOCARD_NAME
REFUSALS = ("Invalid metadata", "LFS batch")  # how a ValueError of huggingface_hub begins that quotes the hub
TOKENS_PAGE = "https://huggingface.co/settings/tokens"


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments; raise ParamsError for a wrong folder or name of a repository."""
    parser = tool_parser("publish", __doc__)
    parser.add_argument("folder", type=Path, help="folder that export_hf wrote")
    parser.add_argument("repo", metavar="OWNER/NAME", help="model repository on the hub")
    parser.add_argument("--create", action="store_true", help="create the repository if it does not exist")
    parser.add_argument("--private", action="store_true", help="create it private; refuse one that is public")
    args = parser.parse_args(argv)
    if not (args.folder / RECORD).is_file():
        raise ParamsError(f"{args.folder}: has no {RECORD}; name a folder that `python src export_hf` wrote")
    try:
        check_repository(args.repo, constants.DEFAULT_REVISION)
    except ValueError as error:
        raise ParamsError(str(error)) from None
    return args


def check_token() -> None:
    """Raise EnvironmentFailure if huggingface_hub has no token, or one that a client would quote in its error."""
    token = hf.get_token()
    if token is None:
        raise EnvironmentFailure(f"no token for the hub; run `hf auth login` or set HF_TOKEN, see {TOKENS_PAGE}")
    if not re.fullmatch(r"[!-~]+", token):
        raise EnvironmentFailure(f"the token for the hub has characters that no token has; copy it from {TOKENS_PAGE}")


def files_of(folder: Path) -> dict[str, Path]:
    """Return the files below a folder by their path in it, sorted."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if not path.is_dir()}


def check_export(folder: Path) -> dict[str, Path]:
    """Return the files of an exported folder by their path in it. Raise IntegrityError if one is altered or unknown.

    Every file but the card follows from the weights and the tokenizer, which model.json names.
    """
    model, tokenizer, found = read_pretrained(folder), load_tokenizer(folder / TOKENIZER.name), files_of(folder)
    with tempfile.TemporaryDirectory() as temporary:
        weights, again = Path(temporary, WEIGHTS), Path(temporary, "again")
        record = own_record(folder / RECORD, model, save_tensors(weights, dict(model.state_dict())))
        check_trained_with(tokenizer.sha256, tokenizer.folder, folder, record)
        again.mkdir()
        write_model(again, model, record, tokenizer)
        expected = {name: sha256_file(path) for name, path in files_of(again).items()}
    if unknown := found.keys() - expected.keys() - {CARD}:
        raise IntegrityError(f"{folder}: {min(unknown)} is not part of an export; move it elsewhere")
    for name, sha256 in expected.items():
        if name not in found or sha256_file(found[name]) != sha256:
            raise IntegrityError(f"{folder / name}: is not the file that export_hf wrote; export the model again")
    weights_sha256, card = record["best"]["sha256"], found.get(CARD)
    if card is None or weights_sha256.encode() not in card.read_bytes():
        raise IntegrityError(f"{folder / CARD}: does not name the weights {weights_sha256}; export the model again")
    return found


@contextlib.contextmanager
def explained(repo: str) -> Iterator[None]:
    """Turn exceptions of huggingface_hub into an EnvironmentFailure; a ParamsError if the hub refuses a file."""
    try:
        yield
    except (httpx2.HTTPError, errors.OfflineModeIsEnabled) as error:
        raise EnvironmentFailure(describe(error, repo)) from None
    except RuntimeError as error:  # the thread that uploads a file wraps its exception
        if not isinstance(error.__cause__, httpx2.HTTPError):
            raise
        raise EnvironmentFailure(describe(error.__cause__, repo)) from None
    except ValueError as error:
        if not str(error).startswith(REFUSALS):
            raise
        raise ParamsError(f"{repo}: the hub refuses the upload: {' '.join(str(error).split())}") from None


def describe(error: Exception, repo: str) -> str:
    """Return what failed in one sentence, without the text of the request."""
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{repo} is not a model repository that the token can see; check the name, or add --create"
    if not isinstance(error, errors.HfHubHTTPError):
        return f"{repo}: {constants.ENDPOINT} is out of reach ({type(error).__name__}); run the same command again"
    status = error.response.status_code
    if status == httpx2.codes.UNAUTHORIZED:
        return f"{repo}: the hub does not accept the token (HTTP 401); make a new one at {TOKENS_PAGE}"
    if status == httpx2.codes.FORBIDDEN:
        return f"{repo}: the token may not write there (HTTP 403); change its permissions at {TOKENS_PAGE}"
    return f"{repo}: the hub answers with HTTP {status}; run the same command again later"


def newest_commit(api: hf.HfApi, args: argparse.Namespace) -> str | None:
    """Return the newest commit of the repository, which is created if asked. ParamsError if it should be private."""
    try:
        info = api.model_info(args.repo)
    except errors.RepositoryNotFoundError:
        if not args.create:
            raise
        api.create_repo(args.repo, private=args.private or None)
        info = api.model_info(args.repo)
    if args.private and not info.private:
        raise ParamsError(f"--private: {args.repo} is public; make it private on its page, or name another one")
    return info.sha


@command
def main(argv: list[str]) -> None:
    """Check the folder, upload it in one commit, and print the commit."""
    args = parse(argv)
    check_token()
    files = check_export(args.folder)
    constants.HF_HUB_DISABLE_XET = True  # as in lm.text.sources.hub: Xet hangs where its servers are out of reach
    hf.utils.logging.set_verbosity_error()  # this command reports by itself
    if not sys.stderr.isatty():
        hf.utils.disable_progress_bars()
    api = hf.HfApi()
    with explained(args.repo):
        before = newest_commit(api, args)
        operations = [hf.CommitOperationAdd(name, path) for name, path in files.items()]
        commit = api.create_commit(args.repo, operations, commit_message=f"Upload {args.folder.resolve().name}")
    size = f"{len(files)} files, {sum(path.stat().st_size for path in files.values()):,} bytes"
    verb = "already holds" if commit.oid == before else "now holds"
    print(f"{constants.ENDPOINT}/{args.repo} {verb} {args.folder} ({size}) at commit {commit.oid}")
