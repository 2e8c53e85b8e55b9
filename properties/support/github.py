"""A repository of GitHub that answers on this machine: its issues, and what was asked of it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@dataclass
class Repository:
    """The issues of a repository, and what was asked of it."""

    address: str = ""
    issues: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which a job knows it."""
        return {
            "GITHUB_API_URL": self.address,
            "GITHUB_REPOSITORY": "example/paritybit",
            "GITHUB_TOKEN": "token",
        }

    def answer(self, method: str, path: str, data: Any) -> Any:
        """Do what a call asks for."""
        self.asked.append(f"{method} {path}")
        if method == "POST":
            number = len(self.issues) + 1
            self.issues.append({"number": number, "state": "open", **data})
            return self.issues[-1]
        if method == "PATCH":
            number = int(path.rpartition("/")[2])
            self.issues[number - 1] |= data
            return self.issues[number - 1]
        return self.issues


@contextmanager
def answering() -> Iterator[Repository]:
    """Return a repository that answers until the block ends."""
    held = Repository()

    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline()
            if not self.raw_requestline or not self.parse_request():
                return
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = held.answer(self.command, self.path, json.loads(text or "null"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    held.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield held
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
