"""A Slurm of one machine: a controller and two nodes on loopback, with all their files in one folder.

Run as a script, this file installs Slurm if it is missing.
"""

import contextlib
import ctypes
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from lm.core.errors import EnvironmentFailure, command

SBIN = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel")
PACKAGES = ("slurm-wlm", "munge")  # of Debian and Ubuntu
NODES = ("node0", "node1")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>

# Without control groups, which containers often lack. The processors, memory and GPUs need not exist: Slurm only counts
# them. A job of the partition `urgent` preempts those of `cpu`, which have `GraceTime` seconds to end.
CONFIGURATION = """\
ClusterName=loopback
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SlurmdTimeout={timeout_s}
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={nodes} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports} CPUs=4 Gres=gpu:2 RealMemory=16000 State=UNKNOWN
PartitionName=cpu Nodes=ALL Default=YES PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL PriorityTier=2
"""


def missing_commands() -> list[str]:
    """Return the commands of Slurm and Munge that are not installed."""
    return [name for name in COMMANDS if shutil.which(name, path=SBIN) is None]


@command
def main(argv: list[str]) -> None:
    """Install Slurm with apt-get if it is missing; raise EnvironmentFailure if that is not possible."""
    if missing_commands() and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "--yes", "--quiet", *PACKAGES], stdin=subprocess.DEVNULL)
    if missing := missing_commands():
        install = f"install Slurm and Munge, on Debian and Ubuntu with `sudo apt-get install {' '.join(PACKAGES)}`"
        raise EnvironmentFailure(f"not installed: {', '.join(missing)}; {install}")


def free_ports(count: int) -> list[int]:
    """Return different free ports of 127.0.0.1."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


class Slurm:
    """A Slurm with files in one folder; `environment` makes the commands of Slurm use it."""

    def __init__(self, folder: Path, timeout_s: int):
        """Write the key and the configuration; a node that is silent for `timeout_s` is down."""
        self.folder, self._daemons = folder, {}
        self.environment = {**os.environ, "PATH": SBIN, "SLURM_CONF": str(folder / "slurm.conf")}
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o400)
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        controller_port, *ports = free_ports(1 + len(NODES))
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                folder=folder, user=getpass.getuser(), controller_port=controller_port, nodes=",".join(NODES),
                ports=",".join(map(str, ports)), timeout_s=timeout_s,
            )
        )  # fmt: skip

    def start(self) -> None:
        """Start all daemons and return when the nodes are idle."""
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{suffix}" for option, suffix in files.items()]
        self._start("munged", "munged", "--force", "--foreground", *options)
        wait_for(lambda: (self.folder / "munge.socket").exists(), self)
        self._start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        wait_for(lambda: self.idle_nodes() == list(NODES), self)

    def _start(self, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.printed", "ab") as printed:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=printed, stderr=printed, stdin=subprocess.DEVNULL,
                preexec_fn=keep_descendants,
            )  # fmt: skip

    def start_node(self, name: str) -> None:
        """Start the daemon of a node and return; `idle_nodes` lists the node when it is ready."""
        self._start(name, "slurmd", "-D", "-N", name)

    def kill(self, name: str) -> None:
        """Kill a node (or another daemon) at once, with all processes of the jobs on it."""
        daemon = psutil.Process(self._daemons[name].pid)
        daemon.suspend()
        while alive := [child for child in daemon.children(recursive=True) if is_alive(child)]:
            for child in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        daemon.kill()
        self._daemons.pop(name).wait()

    def end(self) -> None:
        """Kill every daemon and every process of a job."""
        for name in reversed(list(self._daemons)):
            self.kill(name)

    def run(self, *command: str, **options) -> str:
        """Run a command of Slurm and return what it printed; raise AssertionError with its message if it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, **options)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def idle_nodes(self) -> list[str]:
        """Return the names of the nodes that wait for work."""
        shown = subprocess.run(
            ["sinfo", "-h", "-N", "-p", "cpu", "-t", "idle", "-o", "%N %t"],
            env=self.environment, capture_output=True, text=True,
        )  # fmt: skip
        return sorted(line.split()[0] for line in shown.stdout.splitlines() if line.endswith(" idle"))

    def submit(self, script: Path | str, *options: str, folder: Path) -> str:
        """Submit a batch script in a folder and return the number of the job."""
        return self.run("sbatch", "--parsable", *options, str(script), cwd=folder).strip()

    def state(self, job: str) -> str:
        """Return the state of a job, such as PENDING, RUNNING, COMPLETED, FAILED or CANCELLED."""
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def wait(self, job: str, *states: str, timeout_s: float = 120) -> str:
        """Return the state of a job once it is one of `states`."""
        wait_for(lambda: self.state(job) in states, self, timeout_s)
        return self.state(job)


def keep_descendants() -> None:
    """Make this process the parent of its orphaned descendants, and end it when its own parent ends."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def is_alive(process: psutil.Process) -> bool:
    """Return True unless the process has ended."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], bool], slurm: Slurm, timeout_s: float = 60) -> None:
    """Return once the condition holds; raise AssertionError with the daemons' last messages after the time."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            tails = [path.read_text()[-1500:] for path in sorted(slurm.folder.glob("*.log"))]
            raise AssertionError("\n".join([f"waited {timeout_s} s in vain", *tails]))
        time.sleep(0.2)


@contextlib.contextmanager
def running_slurm(folder: Path, timeout_s: int = 20) -> Iterator[Slurm]:
    """Start a Slurm whose files are in an empty folder; end it with all its jobs."""
    slurm = Slurm(folder, timeout_s)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
