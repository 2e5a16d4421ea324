"""`python` and `dvc` that start at once: a server that has imported the packages forks a process for each command.

    server = start_server(folder)  # folder is for PATH: it has programs `python` and `dvc`
    …
    stop_server(server)

Torch, DVC and other packages take seconds to import, which each stage and each `dvc` of the tests would pay. The server
imports them before the first command. It imports nothing of the repository, whose code a test may change.

The real Python runs what the server cannot: options, as in `python -c`, and commands with other settings that packages
read when they are imported. Of signals only SIGINT and SIGTERM reach the process. So tests of kills, and the slow
tests, use the real programs.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import re
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

PRELOADED = [
    "torch", "torch._dynamo", "numba", "pandas", "pyarrow.parquet", "matplotlib.pyplot", "tiktoken", "tokenizers",
    "jinja2", "dvc.cli.parser", "dvc.data_cloud", "dvc.repo.artifacts", "dvc.repo.experiments",
    "dvc.repo.index", "dvc.repo.plots", "dvc.repo.reproduce", "dvc.repo.status", "dvc.stage.run", "dulwich.worktree",
]  # fmt: skip
WARM_PROGRAMS = "WARM_PROGRAMS"  # the variable that holds the folder of the programs, for all processes of the tests
# Variables that packages read as they are imported.
READ_AT_IMPORT = re.compile(
    r"PYTHON(?!DONTWRITEBYTECODE|UNBUFFERED)|OMP_|MKL_|NPY_|OPENBLAS_|NUMBA_|TORCH_|ATEN_|ONEDNN_|RAYON_|LD_|MPL"
)


def read_at_import(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables of an environment that decide what an import does."""
    return {name: value for name, value in environment.items() if READ_AT_IMPORT.match(name)}


# In the process of the tests.


def start_server(folder: Path) -> subprocess.Popen:
    """Start the server; `folder`, for PATH, gets the programs `python` and `dvc`."""
    folder.mkdir(parents=True, exist_ok=True)
    address = folder / "socket"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen([sys.executable, __file__, address], env=environment, **pipes)
    server.stdout.readline()  # the socket is there
    own_folder = Path(sys.executable).parent
    client = Path(__file__).with_name("warm_client.py")
    for name in ("python", "dvc"):
        words = [sys.executable, "-IS", str(client), str(address), str(own_folder / name)]
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        program.chmod(0o755)
    return server


def stop_server(server: subprocess.Popen) -> None:
    """End the server, which removes its folder, and wait for it."""
    server.stdin.close()
    server.wait()


# In the server.


def serve(address: str) -> None:
    """Fork a process for each command, until the process of the tests closes the standard input, or ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the tests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system takes note of children that have ended
    print("ready", flush=True)
    while select.select([listener, sys.stdin], [], [])[0] == [listener]:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError, ValueError):  # a client that was killed
            answer(connection)
    shutil.rmtree(Path(address).parent)


def answer(connection: socket.socket) -> None:
    """Fork the process that a client asks for, or refuse if its packages would be loaded with other variables."""
    content, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    with connection.makefile("rb") as rest:
        request = json.loads(content if content.endswith(b"\n") else content + rest.readline())
    if read_at_import(request["environment"]) != read_at_import(dict(os.environ)):
        connection.sendall(b"no")
    else:
        preload()
        if os.fork() == 0:
            try:
                become(connection, request, descriptors)
            finally:
                os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)


def preload() -> None:
    """Import the packages, once."""
    if PRELOADED[0] in sys.modules:
        return
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def become(connection: socket.socket, request: dict, descriptors: list[int]) -> None:
    """Turn this new process into the one that the client asks for; end it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream, descriptor in enumerate(descriptors):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    environment = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["folder"])
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in environment
    sys.stdout.reconfigure(line_buffering=os.isatty(1) or "PYTHONUNBUFFERED" in environment)
    connection.sendall(b"ok" + os.getpid().to_bytes(8, "big"))

    status = run(request["program"], request["arguments"])
    # End as Python does, without taking every module to pieces, which takes a second.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    connection.sendall(bytes([status]))
    os._exit(status)


def run(program: str, arguments: list[str]) -> int:
    """Run a script, or DVC; return the status with which Python would end."""
    try:
        if Path(program).name == "dvc":
            sys.argv = [program, *arguments]
            return importlib.import_module("dvc.cli").main(arguments)
        sys.argv = arguments
        script = Path(arguments[0])
        sys.path.insert(0, str(script.absolute() if script.is_dir() else script.absolute().parent))
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return (end.code or 0) & 0xFF
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    serve(sys.argv[1])
