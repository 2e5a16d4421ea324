"""Hosts of ssh on loopback: each is an sshd with its own port and keys, and the processes in its folder."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")

SERVER = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
SetEnv {environment}
"""
CLIENT = """\
Host {name}
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/key
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
  LogLevel ERROR
"""


class Host:
    """A running sshd; `work` is the folder of its work, `configuration` the client's lines of ~/.ssh/config."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        """Make the keys and start the server; commands on the host see `environment`."""
        self.name, self.work = folder.name, folder / "work"
        self.work.mkdir(parents=True)
        for key in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        variables = " ".join(f"{name}={value}" for name, value in environment.items())
        (folder / "sshd_config").write_text(SERVER.format(port=port, folder=folder, environment=variables))
        self.configuration = CLIENT.format(name=self.name, port=port, folder=folder)
        with open(folder / "log", "wb") as log:
            command = [str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")]
            self._daemon = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.05)
        raise AssertionError((folder / "log").read_text())

    def processes(self) -> list[psutil.Process]:
        """Return the processes that run in the host's folder."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if Path(process.cwd()).is_relative_to(self.work):
                    found.append(process)
        return found

    def kill(self) -> None:
        """End the server and every process of the host at once."""
        self._daemon.kill()
        self._daemon.wait()
        while processes := self.processes():
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            time.sleep(0.05)


def use_hosts(hosts: list[Host], folder: Path) -> Path:
    """Write a command `ssh` that knows the hosts into a folder, and return the folder, which goes first into PATH."""
    folder.mkdir()
    (folder / "config").write_text("".join(host.configuration for host in hosts))
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    (folder / "ssh").chmod(0o755)
    return folder
