"""Asks the server at a socket for a fork that runs Python's words, and ends as the fork ends.

A script, which starts without `site`: it imports as little as can be.
"""

import json
import os
import signal
import socket
import sys

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Have the words run, and end as they end."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(sys.argv[1])
    ignored = [n for n in STOPPING if signal.getsignal(n) == signal.SIG_IGN]
    for number in STOPPING:
        if number not in ignored:
            signal.signal(number, lambda heard, _: server.sendall(bytes([heard])))
    asked = {
        "words": sys.argv[2:],
        "folder": os.getcwd(),  # noqa: PTH109
        "variables": dict(os.environ),
        "ignored": [int(number) for number in ignored],
    }
    text = json.dumps(asked).encode()
    socket.send_fds(server, [len(text).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(text)
    ended = server.recv(2)
    code = int.from_bytes(ended, "big", signed=True) if ended else 255
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
