"""What `python` and `dvc` of warm_python.py do: ask the server for a process, and end as it ends."""

import json
import os
import signal
import socket
import sys


def main(address: str, program: str, *arguments: str) -> None:
    is_script = bool(arguments) and not arguments[0].startswith("-")
    is_known_by_server = is_script or not program.endswith("python")
    with socket.socket(socket.AF_UNIX) as connection:
        if not is_known_by_server or not ask(connection, address, program, arguments):
            os.execv(program, [program, *arguments])

        # Pass on signals to the process that the server has begun.
        pid = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(pid, number))

        # End as it ends. The server sends no status if it was killed.
        status = connection.recv(1)
        connection.recv(1)  # returns as the process ends
    if not status:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(status[0])


def ask(connection: socket.socket, address: str, program: str, arguments: tuple[str, ...]) -> bool:
    """Ask for a process; return whether the server begins one."""
    request = {
        "program": program,
        "arguments": arguments,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
    }
    content = json.dumps(request).encode() + b"\n"
    standard_streams = [0, 1, 2]
    try:
        connection.connect(address)
    except OSError:
        return False
    sent = socket.send_fds(connection, [content], standard_streams)
    connection.sendall(content[sent:])
    return connection.recv(2, socket.MSG_WAITALL) == b"ok"


main(*sys.argv[1:])
