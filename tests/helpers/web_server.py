"""The real server for tests: `inferometer web` in a process of its own, and a small client."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
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
    process: subprocess.Popen[str] | None = None

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    def gauge(self, name: str) -> float:
        """A value of /metrics without labels."""
        found = re.search(rf"^{name} (\S+)$", self.get("/metrics").body.decode(), re.M)
        assert found, name
        return float(found[1])

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for something to be true: a busy machine takes its time."""
        for _ in range(600):
            now = condition()
            if now:
                return now
            time.sleep(0.1)
        raise AssertionError("it did not come true within a minute")

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


# Limits as some tests need them, then the command itself.
PATCHED = """
import sys
from inferometer.web import guard, http_server
limits, body_timeout = http_server.ServerLimits(**{limits!r}), {body_timeout!r}
if {limits!r}: http_server.ServerLimits.of_this_process = classmethod(lambda cls: limits)
if body_timeout: guard.BODY_TIMEOUT = body_timeout
from inferometer.cli import main
sys.exit(main(["web", "--port", "0", *sys.argv[1:]]))
"""


@contextmanager
def serving(
    *flags: str,
    limits: dict[str, float] | None = None,
    body_timeout: float = 0.0,
    env: dict[str, str] | None = None,
    log: Path | None = None,
    files: int = 0,
    end: int = signal.SIGINT,
) -> Iterator[Server]:
    """``with serving() as server: server.get("/")``; ``files`` is its limit of open files, ``log`` has its stderr."""

    def limit_files() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    code = PATCHED.format(limits=limits or {}, body_timeout=body_timeout)
    process = subprocess.Popen(
        [sys.executable, "-c", code, *flags],
        stdout=subprocess.PIPE,
        stderr=log.open("w") if log else None,
        text=True,
        env={**os.environ, **(env or {})},
        preexec_fn=limit_files if files else None,
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        address = re.search(r"http://\S+?(?=/ )", said)
        assert address, f"the server said {said!r}"
        yield Server(address[0], process)
    finally:
        if process.poll() is None:
            process.send_signal(end)
            assert process.wait(timeout=60) == 0, "it ends well"
