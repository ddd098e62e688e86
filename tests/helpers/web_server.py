"""The real server for tests: `inferometer web` in a process of its own, and a small client."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Reply(NamedTuple):
    """What the server said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server(NamedTuple):
    """``Server("http://127.0.0.1:8642").post("/api/analyze", {"gpu": "h200"}).json["metrics"]``"""

    address: str

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=120)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, None, headers)

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path, data, {"Content-Type": "application/json", **headers})

    def job(self, path: str, body: Any) -> dict[str, Any]:
        """Begin a job and wait for its end."""
        begun = self.post(path, body)
        assert begun.status == 202, begun.body
        while True:
            now: dict[str, Any] = self.get(f"/api/jobs/{begun.json['job']}").json
            if now["state"] not in ("queued", "running"):
                return now
            time.sleep(0.05)


@contextmanager
def serving(*flags: str) -> Iterator[Server]:
    """``with serving() as server: server.get("/")``"""
    command = [sys.executable, "-m", "inferometer", "web", "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        address = re.search(r"http://\S+?(?=/ )", said)
        assert address, f"the server said {said!r}"
        yield Server(address[0])
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0, "Ctrl-C ends it well"
