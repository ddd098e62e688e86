"""A small HTTP client for answers that stream: every piece is kept with the moment it came, and read when all is there.

answer = await post("http://localhost:8000/v1/completions", b"{…}", {})
answer.events()       # [(12.3456, b'{"choices": …'), …]: seconds of the clock, data of each server-sent event

Why not a library: a benchmark takes in thousands of events a second on one core, and what a general client spends on
each would count as the server's time. Here it is one append; parsing waits until the answer has ended.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..base.errors import BadValue

MAX_PAGE = 2**26  # bytes of a plain page: /metrics of a large fleet has one or two MB


def bearer(api_key: str | None) -> dict[str, str]:
    """The header that carries an API key; a line break at its end, as files have it, is none of the key."""
    key = (api_key or "").strip()
    if not all("!" <= letter <= "~" for letter in key):
        raise BadValue("`api_key` must be one word of ASCII letters, digits and signs")  # which is not repeated
    return {"Authorization": f"Bearer {key}"} if key else {}


class Refused(Exception):
    """The server answered with an error: its status, and the beginning of what it said."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}" if text else f"HTTP {status}")
        self.status = status


class Broken(Exception):
    """The connection could not be made, ended before the answer did, or spoke something else than HTTP."""


class StreamedResponse(NamedTuple):
    """What came back: when the request was sent, the body's bytes, and when each of them was there."""

    began: float  # to connect
    sent: float
    body: bytes
    times: tuple[tuple[int, float], ...]  # (end of a piece in `body`, the moment it came), in order

    def moment(self, end: int) -> float:
        """When the first ``end`` bytes of the body were there."""
        return self.times[bisect_left(self.times, (end,))][1]

    def events(self) -> list[tuple[float, bytes]]:
        """The data of every server-sent event with its moment, up to ``[DONE]``."""
        events: list[tuple[float, bytes]] = []
        start = 0
        while (end := self.body.find(b"\n", start)) >= 0:
            line = self.body[start:end]
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    break
                events.append((self.moment(end + 1), data))
            start = end + 1
        return events

    @property
    def is_done(self) -> bool:
        """Whether the stream says itself that it is over: its last line is ``data: [DONE]``."""
        last = self.body.rstrip().rpartition(b"\n")[2]
        return last.startswith(b"data:") and last[5:].strip() == b"[DONE]"


async def post(url: str, body: bytes, headers: Mapping[str, str]) -> StreamedResponse:
    """Send JSON and wait for the whole answer."""
    return await _exchange("POST", url, body, headers)


async def get(url: str, headers: Mapping[str, str]) -> StreamedResponse:
    """A plain page."""
    return await _exchange("GET", url, b"", headers, MAX_PAGE)


async def _exchange(
    method: str, url: str, body: bytes, headers: Mapping[str, str], most: float = math.inf
) -> StreamedResponse:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    loop = asyncio.get_running_loop()
    began = perf_counter()
    try:
        transport, received = await loop.create_connection(lambda: _Received(most), host, port, ssl=secure or None)
    except OSError as error:
        raise Broken(f"no connection to {host}:{port} ({error.strerror or error})") from None
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        fields = {"Host": parts.netloc.rpartition("@")[2], "Connection": "close", "Accept": "*/*", **headers}
        if body:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields.items())
        sent = perf_counter()
        transport.write(f"{head}\r\n".encode() + body)
        await received.over
    finally:
        transport.abort()
    return received.answer(began, sent)


class _Received(asyncio.Protocol):
    """Collects what comes in; ``over`` is done when the answer is whole or the connection is gone."""

    def __init__(self, most: float = math.inf) -> None:
        self.room = most  # bytes that it may still have
        self.pieces: list[bytes] = []
        self.came: list[float] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tail = b""
        self.left: int | None = None  # bytes to come of a body of announced length

    def data_received(self, data: bytes) -> None:
        self.came.append(perf_counter())
        self.pieces.append(data)
        self.room -= len(data)
        self.tail = (self.tail + data)[-16:]
        if self.left is not None:
            self.left -= len(data)
        elif len(self.pieces) == 1:
            self._announced(data)
        if self.left == 0 or self.room < 0 or self.tail.endswith(b"\r\n0\r\n\r\n"):
            self._end()

    def _announced(self, data: bytes) -> None:
        """A plain body says how long it is; servers send the headers in one piece."""
        head, separator, rest = data.partition(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n") if separator else ():
            if line.startswith(b"content-length:") and line[15:].strip().isdigit():
                self.left = int(line[15:]) - len(rest)

    def connection_lost(self, error: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def answer(self, began: float, sent: float) -> StreamedResponse:
        """The answer, if it is whole; else why not."""
        raw = b"".join(self.pieces)
        if self.room < 0:
            raise Broken(f"it is longer than {MAX_PAGE:,} bytes")
        if not raw:
            raise Broken("the server closed the connection without a response")
        end = raw.find(b"\r\n\r\n")
        status, said = _head(raw[: max(end, 0)])
        ends = list(accumulate(map(len, self.pieces)))

        def moment(end: int) -> float:
            return self.came[bisect_left(ends, end)]

        spans = list(_spans(raw, end + 4, said))
        text = b"".join(raw[a:b] for a, b in spans)
        if status >= 400:
            raise Refused(status, " ".join(text.decode(errors="replace").split())[:300])
        if status != 200:
            raise Broken(f"HTTP {status} where a response was expected")
        return StreamedResponse(began, sent, text, tuple(_times(spans, ends, moment)))


def _times(spans: list[tuple[int, int]], ends: list[int], moment: Any) -> Iterator[tuple[int, float]]:
    """Where the body's bytes end that were there at each moment: a span may come in several pieces."""
    length = 0
    for a, b in spans:
        at = bisect_left(ends, a + 1)
        while at < len(ends) and ends[at] < b:
            yield length + ends[at] - a, moment(ends[at])
            at += 1
        length += b - a
        yield length, moment(b)


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    status_line = first.split(None, 2)
    if len(status_line) < 2 or not status_line[0].startswith("HTTP/1.") or not status_line[1].isdecimal():
        raise Broken(f"the server does not speak HTTP: its response begins with {first[:40]!r}")
    pairs = (line.partition(":") for line in lines if line)
    return int(status_line[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _spans(raw: bytes, start: int, said: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Where the body lies: in chunks, of a known length, or all that is left."""
    if "chunked" in said.get("transfer-encoding", "").lower():
        while True:
            line = raw.find(b"\r\n", start)
            size = raw[start:line].split(b";")[0].strip() if line >= 0 else b""
            if not size:
                raise Broken("the server closed the connection in the middle of a response")
            try:
                length = int(size, 16)
            except ValueError:
                length = -1
            if length < 0:
                raise Broken("the server does not speak HTTP: a chunk without its length")
            if length == 0:
                return
            start = line + 2 + length + 2
            if start > len(raw):
                raise Broken("the server closed the connection in the middle of a response")
            yield line + 2, line + 2 + length
    length = int(said["content-length"]) if said.get("content-length", "").isdecimal() else len(raw) - start
    if start + length > len(raw):
        raise Broken("the server closed the connection in the middle of a response")
    if length:
        yield start, start + length
