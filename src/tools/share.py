"""Push the metrics and plots of every run, which `dvc push --run-cache` leaves out.

    dvc push --run-cache && python src share
    python src share --remote team

DVC records a run as the hashes of all its outputs. It pushes this record and the cached outputs, but never outputs
that are in git (`cache: false`). Another machine then has the record without these files, and runs the stage
again. This command pushes them: some hundred kilobytes per run.
"""

from pathlib import Path

from lm.core.errors import EnvironmentFailure, command
from lm.core.params import read_yaml
from tools.common.arguments import tool_parser


@command
def main(argv: list[str]) -> None:
    """Push the files and print their number. Raise EnvironmentFailure if the remote does not take all of them."""
    parser = tool_parser("share", __doc__)
    parser.add_argument("--remote", metavar="NAME", help="a DVC remote (the default remote)")
    args = parser.parse_args(argv)
    from dvc.repo import Repo  # takes a second to import
    from dvc_data.hashfile.hash_info import HashInfo

    try:
        with Repo(".") as repo:
            # Find the outputs of all runs that are in git, as far as the local cache has them.
            in_git = {out.def_path for out in repo.index.outs if not out.use_cache}
            records = Path(repo.stage_cache.cache_dir).glob("??/*/*")
            outs = [out for record in records for out in read_yaml(record)["outs"] if out["path"] in in_git]
            hashes = {HashInfo("md5", out["md5"]): out["path"] for out in outs if repo.cache.local.exists(out["md5"])}
            result = repo.cloud.push(hashes, remote=args.remote)
    except Exception as error:  # each kind of remote raises its own exceptions
        raise EnvironmentFailure(f"nothing was pushed: {' '.join(str(error).split())}") from error
    if result.failed:
        names = ", ".join(sorted({hashes[failed] for failed in result.failed}))
        raise EnvironmentFailure(f"{len(result.failed)} files were not pushed ({names}); run the same command again")
    print(f"{len(hashes)} files of metrics and plots are on the remote, {len(result.transferred)} of them new")
