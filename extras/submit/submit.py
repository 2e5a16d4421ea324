"""Send queued experiments to other machines, by ssh or Slurm, and bring their results home.

    dvc exp run --queue -S 'train.seed=range(1,6)' -n base
    python src submit to gpu1:lm gpu2:lm -j 2           # hosts of ssh and the folder of a clone there
    python src submit to slurm:/shared/lm -j 4 --option time=4:00:00 --option gpus=1
    python src submit status                            # and fetch what is done
    python src submit logs base-1
    python src submit cancel base-2 base-3

`to` moves DVC's queued experiments to the Git remote as refs and starts workers; without queued experiments it only
starts workers. A worker claims an experiment, runs it in a clone of its own with `dvc exp run --pull`, and pushes the
result with `dvc exp push`. It ends when no experiment is free. An experiment whose worker was not heard for
--lost-after seconds is lost: the next worker that is free takes it and resumes its training. Needs a Git
remote and a default DVC remote that all machines reach.
"""

import argparse
import re
from pathlib import Path

from extras.submit.board import ENDED, Board, Experiment, Record, open_board, run
from extras.submit.hosts import read_target, start_worker
from lm.core.errors import EnvironmentFailure, ParamsError, command
from tools.common.arguments import tool_parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments; exit with status 2 if one is wrong."""
    parser = tool_parser("submit", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--remote", default="origin", metavar="NAME", help="a Git remote (origin)")
    common.add_argument("--lost-after", type=float, default=600, metavar="S",
                        help="seconds without a heartbeat after which an experiment is lost (600)")  # fmt: skip
    working = argparse.ArgumentParser(add_help=False)
    working.add_argument("--heartbeat", type=float, default=60, metavar="S", help="seconds between heartbeats (60)")
    working.add_argument("--save-every", type=float, default=300, metavar="S",
                         help="seconds between copies of the training states to the DVC remote (300)")  # fmt: skip
    working.add_argument("--wait", action="store_true", help="wait until every experiment has ended")
    to = commands.add_parser("to", parents=[common, working], help="send the queue and start workers")
    to.add_argument("targets", nargs="+", metavar="HOST:FOLDER", help="a host of ssh, or slurm, and a clone there")
    to.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="workers on each host (1)")
    to.add_argument("--python", default=".venv/bin/python", help="Python of the hosts (.venv/bin/python)")
    to.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of sbatch")
    commands.add_parser("work", parents=[common, working], help="run experiments here; `to` starts this on the hosts")
    commands.add_parser("status", parents=[common], help="fetch finished experiments and show all")
    logs = commands.add_parser("logs", parents=[common], help="print the end of a log")
    logs.add_argument("names", nargs=1, metavar="NAME", help="an experiment")
    cancel = commands.add_parser("cancel", parents=[common], help="end experiments")
    cancel.add_argument("names", nargs="+", metavar="NAME", help="experiments")
    args = parser.parse_args(argv)
    check_times(args)
    return args


def check_times(args: argparse.Namespace) -> None:
    """Raise ParamsError for a number that is out of range."""
    if args.command in ("to", "work") and not 0 < 2 * args.heartbeat <= args.lost_after:
        problem = f"--heartbeat is {args.heartbeat:g} and --lost-after {args.lost_after:g}"
        raise ParamsError(f"{problem}, needed: at least two heartbeats before an experiment is lost")
    if getattr(args, "jobs", 1) < 1:
        raise ParamsError(f"--jobs is {args.jobs}, needed: at least 1")


def read_options(pairs: list[str]) -> dict[str, str]:
    """Return NAME=VALUE pairs as a dict; raise ParamsError if one has no value."""
    for pair in pairs:
        if not re.fullmatch(r"[a-z][a-z-]*=.+", pair):
            raise ParamsError(f"--option is {pair!r}, needed: NAME=VALUE, such as time=4:00:00")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def send(args: argparse.Namespace, board: Board) -> None:
    """Move the queued experiments of DVC to the board, then start the workers."""
    from dvc.repo import Repo  # takes a second to import

    targets = [read_target(text) for text in args.targets]
    options = read_options(args.option)
    with Repo(".") as repo:
        if not repo.config["core"].get("remote"):
            raise ParamsError("DVC has no default remote, which all machines must reach; `dvc remote add --default`")
        queue = repo.experiments.celery_queue
        queued = {entry.name: entry.stash_rev for entry in queue.iter_queued() if entry.name}
        busy = [name for name, found in board.experiments().items() if found.record.state not in ENDED]
        if taken := sorted(queued.keys() & set(busy)):
            raise ParamsError(
                f"{', '.join(taken)}: sent before and not ended; queue it under another name or cancel it"
            )
        if queued:
            board.send(queued)
            queue.remove(list(queued))
    print(f"{len(queued)} experiments sent, {len(busy)} were sent before")
    work = [args.python, "src", "submit", "work", "--remote", args.remote, "--lost-after", f"{args.lost_after:g}",
            "--heartbeat", f"{args.heartbeat:g}", "--save-every", f"{args.save_every:g}"]  # fmt: skip
    failures = []
    for target in targets * args.jobs:
        try:
            print(f"{target.host}: {start_worker(target, work + ['--wait'] * args.wait, options)}", flush=True)
        except EnvironmentFailure as error:
            failures.append(f"{target.host}: {error}")
    if failures:
        problem = f"{len(failures)} of {len(targets) * args.jobs} workers did not start ({'; '.join(failures)})"
        raise EnvironmentFailure(f"{problem}; run the same command for the others")


def show(args: argparse.Namespace, board: Board) -> None:
    """Fetch the results of experiments that are done, and print all experiments."""
    experiments = board.experiments()
    for found in experiments.values():
        if found.record.state == "done":
            fetch_result(args.remote, board, found)
    width = max(map(len, experiments), default=0)
    for name, found in experiments.items():
        print(f"{name:{width}}  {found.shown_state(args.lost_after):9}  {found.record.worker}".rstrip())


def fetch_result(remote: str, board: Board, experiment: Experiment) -> None:
    """Bring the ref of an experiment and its cache home, unless the same ref is there."""
    baseline = board.git("rev-parse", f"{experiment.stash_rev}^1").strip()
    ref = f"refs/exps/{baseline[:2]}/{baseline[2:]}/{experiment.name}"
    there = board.git("ls-remote", board.url, ref).split()[0]
    if run("git", "for-each-ref", "--format=%(objectname)", ref).strip() != there:
        run("dvc", "exp", "pull", "--force", remote, ref)


def cancel(args: argparse.Namespace, board: Board) -> None:
    """Mark experiments as cancelled, upon which their workers end them; raise ParamsError for one that has ended."""
    experiments = board.experiments()
    for name in args.names:
        state = experiments[name].record.state if name in experiments else "unknown"
        if state not in ("queued", "running"):
            raise ParamsError(f"{name} is {state}, needed: an experiment that is queued or running")
        if not board.write(experiments[name], Record("cancelled"), board.log(experiments[name])):
            raise EnvironmentFailure(f"{name} has changed meanwhile; run the same command again")


def print_log(args: argparse.Namespace, board: Board) -> None:
    """Print the end of an experiment's log; raise ParamsError if it was not sent."""
    found = board.experiments().get(args.names[0])
    if found is None:
        raise ParamsError(f"{args.names[0]} was not sent; `python src submit status` lists what was")
    print(end=board.log(found))


@command
def main(argv: list[str]) -> None:
    """Run the command of the arguments."""
    args = parse(argv)
    with open_board(args.remote, Path.cwd()) as board:
        if args.command == "work":
            from extras.submit.worker import Timing, work  # loads DVC, which takes a second

            return work(board, Timing(args.heartbeat, args.save_every, args.lost_after), args.wait)
        return {"to": send, "status": show, "cancel": cancel, "logs": print_log}[args.command](args, board)
