"""Send queued experiments to other machines, by ssh or Slurm, and bring their results home.

    dvc exp run --queue -S 'train.seed=range(1,6)' -n base
    python src submit to gpu1:lm gpu2:lm -j 2           # hosts of ssh and the folder of a clone there
    python src submit to slurm:/shared/lm -j 4 --option time=4:00:00 --option gpus=1
    python src submit status                            # and fetch what is done
    python src submit logs base-1
    python src submit cancel base-2 base-3

`to` moves DVC's queued experiments to the Git remote `origin` as refs and starts workers; without queued experiments it
only starts workers. A worker claims an experiment, runs it in a clone of its own with `dvc exp run --pull`, and pushes
the result with `dvc exp push`. It ends when no experiment is free. An experiment whose worker was not heard for
--lost-after seconds is lost: the next worker that is free takes it and resumes its training. Needs a default DVC remote
that all machines reach.
"""

import argparse
import re
import shlex
from pathlib import Path

from extras.submit.board import ENDED, Board, Experiment, Record, open_board, run
from lm.core.errors import EnvironmentFailure, ParamsError, command
from tools.common.arguments import tool_parser

SLURM = "slurm"
# Slurm sends SIGTERM to the worker two minutes before the time is up, so that it saves and releases its experiment.
SLURM_OPTIONS = {"job-name": "submit", "signal": "B:TERM@120", "output": ".submit/slurm-%j.log"}


def parse(argv: list[str]) -> argparse.Namespace:
    parser = tool_parser("submit", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    common, working = (argparse.ArgumentParser(add_help=False) for _ in range(2))
    common.add_argument("--lost-after", type=float, default=600, metavar="S",
                        help="seconds without a heartbeat after which an experiment is lost (600)")  # fmt: skip
    working.add_argument("--heartbeat", type=float, default=60, metavar="S", help="seconds between heartbeats (60)")
    working.add_argument("--save-every", type=float, default=300, metavar="S",
                         help="seconds between copies of the training checkpoints to the DVC remote (300)")  # fmt: skip
    working.add_argument("--wait", action="store_true", help="wait until every experiment has ended")
    to = commands.add_parser("to", parents=[common, working], help="send the queue and start workers")
    to.add_argument("targets", nargs="+", metavar="HOST:FOLDER", help="a host of ssh, or slurm, and a clone there")
    to.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="workers on each host (1)")
    to.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of sbatch")
    commands.add_parser("work", parents=[common, working], help="run experiments here; `to` starts this on the hosts")
    commands.add_parser("status", parents=[common], help="fetch finished experiments and show all")
    logs = commands.add_parser("logs", parents=[common], help="print the end of a log")
    logs.add_argument("names", nargs=1, metavar="NAME", help="an experiment")
    cancel = commands.add_parser("cancel", parents=[common], help="end experiments")
    cancel.add_argument("names", nargs="+", metavar="NAME", help="experiments")
    args = parser.parse_args(argv)
    if args.command in ("to", "work") and not 0 < 2 * args.heartbeat <= args.lost_after:
        problem = f"--heartbeat is {args.heartbeat:g} and --lost-after {args.lost_after:g}"
        raise ParamsError(f"{problem}, needed: at least two heartbeats before an experiment is lost")
    if args.command == "to":
        if args.jobs < 1:
            raise ParamsError(f"--jobs is {args.jobs}, needed: at least 1")
        for target in args.targets:
            if not re.fullmatch(r"[^:-][^:]*:.+", target):
                raise ParamsError(f"the target is {target!r}, needed: HOST:FOLDER, or slurm:FOLDER")
        for pair in args.option:
            if not re.fullmatch(r"[a-z][a-z-]*=.+", pair):
                raise ParamsError(f"--option is {pair!r}, needed: NAME=VALUE, such as time=4:00:00")
    return args


def send(args: argparse.Namespace, board: Board) -> None:
    """Move the queued experiments of DVC to the board, then start the workers."""
    from dvc.repo import Repo  # takes a second to import

    with Repo(".") as repo:
        if not repo.config["core"].get("remote"):
            raise ParamsError("DVC has no default remote, which all machines must reach; `dvc remote add --default`")
        queue = repo.experiments.celery_queue
        queued = {entry.name: entry.stash_rev for entry in queue.iter_queued() if entry.name}
        busy = [name for name, found in board.experiments().items() if found.record.state not in ENDED]
        if taken := ", ".join(sorted(queued.keys() & set(busy))):
            raise ParamsError(f"{taken}: sent before and not ended; queue it under another name or cancel it")
        if queued:
            board.send(queued)
            queue.remove(list(queued))
    print(f"{len(queued)} experiments sent, {len(busy)} were sent before")
    times = [
        f"--{name}={getattr(args, name.replace('-', '_')):g}" for name in ("lost-after", "heartbeat", "save-every")
    ]
    work = [".venv/bin/python", "src", "submit", "work", *times, *["--wait"] * args.wait]
    failures = []
    for target in args.targets * args.jobs:
        host, _, folder = target.partition(":")
        try:
            print(f"{host}: {start_worker(host, folder, work, args.option)}", flush=True)
        except EnvironmentFailure as error:
            failures.append(f"{host}: {error}")
    if failures:
        problem = f"{len(failures)} of {len(args.targets) * args.jobs} workers did not start ({'; '.join(failures)})"
        raise EnvironmentFailure(f"{problem}; run the same command for the others")


def start_worker(host: str, folder: str, work: list[str], options: list[str]) -> str:
    """Start a worker with the command `work` and return its process or job; raise EnvironmentFailure if it fails."""
    if host == SLURM:
        run("mkdir", "-p", f"{folder}/.submit")
        flags = [f"--{name}={value}" for name, value in SLURM_OPTIONS.items()] + [f"--{pair}" for pair in options]
        wrap = f"--wrap=exec {shlex.join(work)}"
        return "job " + run("sbatch", "--parsable", f"--chdir={folder}", *flags, wrap).strip()
    # The worker gets a session of its own and no terminal, so that it survives the connection.
    started = f"setsid nohup {shlex.join(work)} >> .submit/workers.log 2>&1 < /dev/null & echo $!"
    return "process " + run("ssh", host, f"cd {shlex.quote(folder)} && mkdir -p .submit && {{ {started}; }}").strip()


def show(args: argparse.Namespace, board: Board) -> None:
    """Fetch the results of experiments that are done, and print all experiments."""
    experiments = board.experiments()
    for found in experiments.values():
        if found.record.state == "done":
            fetch_result(board, found)
    width = max(map(len, experiments), default=0)
    for name, found in experiments.items():
        print(f"{name:{width}}  {found.shown_state(args.lost_after):9}  {found.record.worker}".rstrip())


def fetch_result(board: Board, experiment: Experiment) -> None:
    """Bring the ref of an experiment and its cache home, unless the same ref is there."""
    baseline = board.git("rev-parse", f"{experiment.stash_rev}^1").strip()
    ref = f"refs/exps/{baseline[:2]}/{baseline[2:]}/{experiment.name}"
    there = board.git("ls-remote", board.url, ref).split()[0]
    if run("git", "for-each-ref", "--format=%(objectname)", ref).strip() != there:
        run("dvc", "exp", "pull", "--force", "origin", ref)


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
    args = parse(argv)
    with open_board(Path.cwd()) as board:
        if args.command == "work":
            from extras.submit.worker import work  # loads DVC, which takes a second

            return work(board, args)
        return {"to": send, "status": show, "cancel": cancel, "logs": print_log}[args.command](args, board)
