"""Push the metrics and plots of every run, which `dvc push --run-cache` leaves out.

    dvc push --run-cache && python src share
    python src share --remote team

DVC records a run as the hashes of all that it wrote. It pushes the record and what its cache holds for the
workspace, but never the outputs that are in git (`cache: false`). Another machine then finds the record and
not these files, and runs the stage again. Here they follow: some hundred kilobytes a run.
"""

import argparse
import sys
from pathlib import Path

from lm.core.errors import EnvironmentFailure, command
from lm.core.params import read_yaml


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser("python src share", description=__doc__.splitlines()[0])
    parser.add_argument("--remote", metavar="NAME", help="a remote of DVC's; the default one if left out")
    return parser.parse_args(argv)


def uncached_outputs(repo) -> dict:
    """{hash: path} of what runs wrote to outputs that are in git, as far as the local cache has it.

    `repo` is a dvc.repo.Repo; the hashes are dvc_data's HashInfo.
    """
    from dvc_data.hashfile.hash_info import HashInfo

    in_git = {out.def_path for out in repo.index.outs if not out.use_cache}
    records = Path(repo.stage_cache.cache_dir).glob("??/*/*")
    outs = [out for record in records for out in read_yaml(record)["outs"] if out["path"] in in_git]
    return {HashInfo("md5", out["md5"]): out["path"] for out in outs if repo.cache.local.exists(out["md5"])}


def push(repo, hashes: dict, remote: str | None):
    """DVC's push of single files; EnvironmentFailure with the reason, which each kind of remote words its own way."""
    try:
        return repo.cloud.push(hashes, remote=remote)
    except Exception as error:
        raise EnvironmentFailure(f"nothing was pushed: {' '.join(str(error).split())}") from error


@command
def main(argv: list[str]) -> None:
    """Push them and say how many there are; EnvironmentFailure if the remote takes not all of them."""
    args = parse(argv)
    from dvc.exceptions import DvcException  # DVC takes a second to import
    from dvc.repo import Repo

    try:
        with Repo(".") as repo:
            hashes = uncached_outputs(repo)
            result = push(repo, hashes, args.remote)
    except DvcException as error:
        raise EnvironmentFailure(" ".join(str(error).split())) from error
    if result.failed:
        names = ", ".join(sorted({hashes[failed] for failed in result.failed}))
        raise EnvironmentFailure(f"{len(result.failed)} files were not pushed ({names}); run the same command again")
    print(f"{len(hashes)} files of metrics and plots are on the remote, {len(result.transferred)} of them new")


if __name__ == "__main__":
    sys.exit(main())
