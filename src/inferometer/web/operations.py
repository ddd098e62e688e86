"""For those who operate a server: one line for each request, and counts of them for Prometheus.

observed = Observer(app, RequestLog("json"))      # an application that counts what goes through it
observed.metrics.text({"inferometer_workers": 2})  # b'# HELP http_requests_total …'
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple

from .guard import Application, Receive, Scope, Send

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # s, upper ends
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")


class Gauge(NamedTuple):
    """A value of now: ``Gauge("inferometer_workers", "Processes that answer.", 2)``; ``kind`` may be counter."""

    name: str
    help: str
    value: float
    kind: str = "gauge"


class RequestMetrics:
    """How many requests came to which route with which status, and how long they took."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.buckets: dict[str, list[int]] = {}
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one."""
        self.requests[method, route, status] += 1
        counts = self.buckets.setdefault(route, [0] * (len(BUCKETS) + 1))
        counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds[route] += seconds

    def text(self, gauges: Iterable[Gauge] = ()) -> bytes:
        """All of them in Prometheus' text format (version 0.0.4)."""
        lines = metric_head("http_requests_total", "Requests by route and status.", "counter")
        for (method, route, status), number in sorted(self.requests.items()):
            labels = {"method": method, "route": route, "status": str(status)}
            lines.append(f"http_requests_total{metric_labels(labels)} {number}")
        name = "http_request_duration_seconds"
        lines += metric_head(name, "Seconds from a request's header to the end of its answer.", "histogram")
        for route, counts in sorted(self.buckets.items()):
            below = 0
            for end, number in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                below += number
                lines.append(f"{name}_bucket{metric_labels({'route': route, 'le': end})} {below}")
            lines.append(f"{name}_sum{metric_labels({'route': route})} {self.seconds[route]:.6f}")
            lines.append(f"{name}_count{metric_labels({'route': route})} {below}")
        for gauge in gauges:
            lines += [*metric_head(gauge.name, gauge.help, gauge.kind), f"{gauge.name} {gauge.value:.10g}"]
        return ("\n".join(lines) + "\n").encode()


def metric_head(name: str, text: str, kind: str) -> list[str]:
    """What comes before a metric's values: ``metric_head("http_requests_total", "Requests.", "counter")``"""
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def metric_labels(labels: Mapping[str, str]) -> str:
    """``metric_labels({"le": "0.1"})  # '{le="0.1"}'``"""
    escaped = {k: v.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for k, v in labels.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"


class RequestLog:
    """One line for each request on standard error, without its query: ``RequestLog("json").write(…)``"""

    def __init__(self, form: str = "text") -> None:
        self.form = form

    def write(self, client: str, method: str, path: str, status: int, seconds: float) -> None:
        """A line; where it cannot be written, the server goes on without."""
        if self.form == "off":
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        shown = path if len(path) <= 200 else f"{path[:200]}…"
        fields = {"time": now, "client": client, "method": method, "path": shown, "status": status}
        if self.form == "json":
            line = json.dumps({**fields, "ms": round(seconds * 1e3, 2)})
        else:
            line = f"{now} {client} {_printable(method)} {_printable(shown)} {status} {seconds * 1e3:.1f} ms"
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(line, file=sys.stderr, flush=True)


def _printable(text: str) -> str:
    """A text that cannot break a line or move a cursor."""
    return "".join(letter if letter.isprintable() and letter != " " else repr(letter)[1:-1] for letter in text)


class Observer:
    """An application whose requests are counted, timed and logged."""

    def __init__(self, app: Application, log: RequestLog, routes: Iterable[str] = ()) -> None:
        self.app, self.log = app, log
        self.routes = frozenset(routes)
        self.metrics = RequestMetrics()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 499  # as nginx has it: nothing was answered

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            seconds = time.perf_counter() - started
            client = scope.get("client")
            self.note(client[0] if client else "-", scope["method"], scope["path"], status, seconds)

    def note(self, client: str, method: str, path: str, status: int, seconds: float = 0.0) -> None:
        """Count and log one request; also one that never came so far."""
        shown = method if method in METHODS else "other"
        self.metrics.observe(shown, self.route(path), status, seconds)
        self.log.write(client, method, path, status, seconds)

    def route(self, path: str) -> str:
        """The route of a path, of which there are few: ``route("/api/jobs/3f")  # '/api/jobs/{job}'``"""
        if path in self.routes:
            return path
        parts = path.split("/")
        return next((route for route in self.routes if _matches(route.split("/"), parts)), "other")


def _matches(route: list[str], path: list[str]) -> bool:
    """Whether a path is of a route, part by part; a part in braces stands for any text."""
    pairs = zip(route, path, strict=True) if len(route) == len(path) else ()
    return len(route) == len(path) and all(one == other or (one[:1] == "{" and other) for one, other in pairs)


def resident_bytes(process: int | None = None) -> float:
    """Memory that a process (this one) holds; 0 where the system does not say."""
    try:
        with open(f"/proc/{process or 'self'}/statm", encoding="ascii") as file:
            return float(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
