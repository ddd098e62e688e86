"""Which requests are let in, and how large and slow they may be: the gate in front of the server.

A page on another site can make a browser send requests to this machine. So the Host must be a name of this machine (a
foreign one that was pointed at 127.0.0.1 is not), a foreign Origin is refused, bodies are JSON and of bounded size, and
answers say what a browser may do with them. A server that other machines can reach asks for a token besides.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from .answers import JsonAnswer, refusal

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_BODY = 2_200_000  # bytes: a config.json of 2 MB and the plan around it
LARGE_BODIES = {"/api/simulate": 24_000_000, "/api/search": 24_000_000}  # a trace of 20 MB, its quotes escaped
ABANDONED = 100_000_000  # bytes after which a body is not read on
MAX_BODIES = 256_000_000  # bytes of all bodies that are on the way
BODY_TIMEOUT = 60.0  # s for all of a body
OPEN_PATHS = ("/", "/healthz", "/healthz/live")  # need no token, nor does /static
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


class Token:
    """A secret that clients must know: ``Token("…").allows({"authorization": "Bearer …"})``

    A browser gives it once in the address and gets a cookie for it, from which the token cannot be read.
    """

    def __init__(self, secret: str) -> None:
        self.secret = secret.encode()
        digest = hashlib.sha256(b"inferometer web " + self.secret).hexdigest()
        self.cookie, self.session = f"inferometer_{digest[:8]}", digest[8:]

    def is_right(self, secret: str) -> bool:
        """Whether a secret is this one; takes as long for a nearly right one as for any other."""
        return hmac.compare_digest(secret.encode("utf-8", "surrogateescape"), self.secret)

    def allows(self, headers: dict[str, str]) -> bool:
        """Whether the headers of a request have it, or a cookie that was given for it."""
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_right(secret.strip()):
            return True
        try:
            session = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return session is not None and hmac.compare_digest(session.value.encode(), self.session.encode())

    def set_cookie(self, secure: bool) -> str:
        """The header's value that gives a browser its cookie."""
        return f"{self.cookie}={self.session}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


class Guard:
    """``Guard(app, "127.0.0.1")``: an application behind the gate, for a server that listens there."""

    def __init__(
        self,
        app: Application,
        host: str = "127.0.0.1",
        names: Iterable[str] = (),
        token: Token | None = None,
        version: str = "",
    ) -> None:
        self.app, self.token = app, token
        self.headers = [*HEADERS, (b"x-page-version", version.encode())]  # a page that is older offers to be reloaded
        self.hosts = LOCAL | {name.lower().strip("[]").rstrip(".") for name in (host, *names)}
        self.everywhere = host in ("0.0.0.0", "::", "")
        self.bodies = 0  # bytes that are held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            decorated = _Decorated(send, self.headers)
            try:
                await self._answer(scope, receive, decorated)
            except asyncio.CancelledError:  # the server ends, and this took longer than it waits
                if not decorated.started:
                    await _send(decorated, refusal(503, "the server is shutting down"))

    async def _answer(self, scope: Scope, receive: Receive, decorated: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self.refused(scope["method"], scope["path"], headers)
        if refused is None and self.token is not None:
            given = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)).get(
                "token"
            )
            if given is not None and self.token.is_right(given):
                await self._welcome(scope, decorated)
                return
            refused = self._without_token(scope["path"], headers, given)
        if refused is None and scope["method"] not in ("GET", "HEAD"):
            await self._with_body(scope, receive, decorated)
        elif refused is None:
            await self.app(scope, receive, decorated)
        else:
            await _send(decorated, refused)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read all of the body first; its bytes count for as long as the request lasts."""
        body = _Body(self, LARGE_BODIES.get(scope["path"], MAX_BODY))
        try:
            refused = await body.read(receive)
            if refused is None:
                await self.app(scope, body.replay(receive), send)
            else:
                await _send(send, refused)
        finally:
            self.bodies -= body.size

    def refused(self, method: str, path: str, headers: dict[str, str]) -> JsonAnswer | None:
        """Why a request is not answered, or None."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.is_local(host):
            return refusal(403, f"this page is served for {', '.join(sorted(self.hosts))}, not for the host {host!r}")
        if origin is not None and _place(origin) != host.lower():
            return refusal(403, f"a page of {origin!r} may not use this server")
        if headers.get("sec-fetch-site") == "cross-site" and path != "/":
            return refusal(403, "a page of another site may not use this server")
        if method == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return refusal(415, f"the request must be application/json, not {kind or 'of no type'!r}")
        return None

    def _without_token(self, path: str, headers: dict[str, str], given: str | None) -> JsonAnswer | None:
        if self.token is None or self.token.allows(headers):
            return None
        if given is None and (path in OPEN_PATHS or path.startswith("/static/")):
            return None  # the page itself is no secret, and a link from elsewhere brings no cookie
        why = "this token is not the server's" if given is not None else "this server requires its token"
        return refusal(401, f"{why}: open it once as /?token=TOKEN, or send the header Authorization: Bearer TOKEN")

    async def _welcome(self, scope: Scope, send: Send) -> None:
        """Give a cookie for a token, and go to the same address without it. A redirection would not do: a browser that
        came from another site would not send a strict cookie along."""
        assert self.token is not None
        pairs = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        query = urlencode([(name, value) for name, value in pairs if name != "token"])
        address = "/" + quote(scope["path"].lstrip("/")) + (f"?{query}" if query else "")
        onward = f'<meta http-equiv="refresh" content="0;url={html.escape(address)}">'
        page = f"<!doctype html>{onward}<title>inferometer</title>"
        cookie = self.token.set_cookie(scope.get("scheme") == "https")
        headers = [(b"set-cookie", cookie.encode()), (b"cache-control", b"no-store")]
        await _send(send, JsonAnswer(200, page.encode()), "text/html; charset=utf-8", headers)

    def is_local(self, host: str) -> bool:
        """Whether a Host header names this machine; a server for all addresses takes any address, but no other name."""
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".") if _well_formed(host) else ""
        if name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.everywhere


def _place(origin: str) -> str:
    """Host and port of an Origin; empty if it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _well_formed(host: str) -> bool:
    try:
        port = urlsplit(f"//{host}").port  # which is checked when it is read
    except ValueError:
        return False
    return port != 0 and not set(host) & set("/@?# ")


class _Body:
    """The body of one request. One that is somewhat too large is read to its end, and forgotten: only then does a
    browser listen to the answer."""

    def __init__(self, guard: Guard, most: int) -> None:
        self.guard, self.most = guard, most
        self.parts: list[bytes] = []
        self.size = 0  # bytes that are held

    async def read(self, receive: Receive) -> JsonAnswer | None:
        """All of it; or why it is refused."""
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                return await self._read(receive)
        except TimeoutError:
            return refusal(408, f"the request did not come within {BODY_TIMEOUT:g} s")

    async def _read(self, receive: Receive) -> JsonAnswer | None:
        received, more = 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return refusal(400, "the request was aborted")
            part = message.get("body", b"")
            received += len(part)
            if received <= self.most:
                self.parts.append(part)
                self._hold(self.size + len(part))
            else:
                self.parts.clear()
                self._hold(0)
            if self.guard.bodies > MAX_BODIES:
                return refusal(503, "too much is being sent to this server at once: try again in a moment")
            more = message.get("more_body", False) and received <= ABANDONED
        if received > self.most:
            return refusal(413, "the request is too large: a config.json may have 2 MB, a trace 20 MB", "model")
        return None

    def _hold(self, size: int) -> None:
        self.guard.bodies += size - self.size
        self.size = size

    def replay(self, receive: Receive) -> Receive:
        """What the application receives: the whole body at once, then what comes after it."""
        waiting = [b"".join(self.parts)]
        self.parts.clear()

        async def replayed() -> MutableMapping[str, Any]:
            if waiting:
                return {"type": "http.request", "body": waiting.pop(), "more_body": False}
            return await receive()

        return replayed


class _Decorated:
    """Sends answers with the headers that say what a browser may do."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self.send, self.headers, self.started = send, headers, False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            ours = {name for name, _ in self.headers}
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in ours]
            message["headers"] = [*kept, *self.headers]
        await self.send(message)


async def _send(
    send: Send, answer: JsonAnswer, kind: str = "application/json", more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    length = str(len(answer.body)).encode()
    headers = [(b"content-type", kind.encode()), (b"content-length", length), (b"connection", b"close"), *more]
    if answer.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
