"""Which requests are let in, and how large they may be: the gate in front of the server.

A page on another site can make a browser send requests to this machine. So the Host must be a name of this machine (a
foreign one that was pointed at 127.0.0.1 is not), a foreign Origin is refused, bodies are JSON and of bounded size, and
answers say what a browser may do with them.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from .answers import JsonAnswer, refusal

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_BODY = 2_200_000  # bytes: a config.json of 2 MB and the plan around it
LARGE_BODIES = {"/api/simulate": 24_000_000, "/api/search": 24_000_000}  # a trace of 20 MB, its quotes escaped
ABANDONED = 100_000_000  # bytes after which a body is not read on
BODY_TIMEOUT = 30.0  # s for a body to come
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; worker-src 'self' blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """``Guard(app, "127.0.0.1")``: an application behind the gate, for a server that listens there."""

    def __init__(self, app: Application, host: str = "127.0.0.1") -> None:
        self.app = app
        self.hosts = LOCAL | {host.lower().strip("[]")}
        self.everywhere = host in ("0.0.0.0", "::", "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self.refused(scope["method"], scope["path"], headers)
        body = b""
        if refused is None and scope["method"] not in ("GET", "HEAD"):
            received = await _body(receive, LARGE_BODIES.get(scope["path"], MAX_BODY))
            refused, body = (received, b"") if isinstance(received, JsonAnswer) else (None, received)

        async def decorated(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                ours = {name for name, _ in HEADERS}
                kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in ours]
                message["headers"] = [*kept, *HEADERS]
            await send(message)

        if refused is not None:
            await _send(decorated, refused)
            return
        sent = False

        async def replayed() -> MutableMapping[str, Any]:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replayed, decorated)

    def refused(self, method: str, path: str, headers: dict[str, str]) -> JsonAnswer | None:
        """Why a request is not answered, or None."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.is_local(host):
            return refusal(403, f"this page is served for {', '.join(sorted(self.hosts))}, not for the host {host!r}")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return refusal(403, f"a page of {origin!r} may not ask this server")
        if headers.get("sec-fetch-site") == "cross-site" and path != "/":
            return refusal(403, "a page of another site may not ask this server")
        if method == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return refusal(415, f"what is sent must be application/json, not {kind or 'of no type'!r}")
        return None

    def is_local(self, host: str) -> bool:
        """Whether a Host header names this machine; a server for all addresses takes any address, but no other name."""
        name = (urlsplit(f"//{host}").hostname or "") if _well_formed(host) else ""
        if name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.everywhere


def _well_formed(host: str) -> bool:
    try:
        port = urlsplit(f"//{host}").port  # which is checked when it is read
    except ValueError:
        return False
    return port != 0 and not set(host) & set("/@?# ")


async def _body(receive: Receive, most: int) -> bytes | JsonAnswer:
    """All of a body, or why it is refused. One that is somewhat too large is read to its end, and forgotten: only then
    does a browser listen to the answer."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        try:
            message = await asyncio.wait_for(receive(), BODY_TIMEOUT)
        except TimeoutError:
            return refusal(400, f"the rest of the request did not come within {BODY_TIMEOUT:g} s")
        if message["type"] != "http.request":
            return refusal(400, "the request was broken off")
        part = message.get("body", b"")
        size += len(part)
        parts = [*parts, part] if size <= most else []
        more = message.get("more_body", False) and size <= ABANDONED
    if size > most:
        return refusal(413, "what was sent is too large: a config.json may have 2 MB, a trace 20 MB", "model")
    return b"".join(parts)


async def _send(send: Send, answer: JsonAnswer) -> None:
    length = str(len(answer.body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
