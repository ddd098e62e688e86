"""uvicorn within bounds: connections are counted, slow clients are ended, and it stops in good order.

serve(app, listening("127.0.0.1", 8642))      # until SIGTERM or Ctrl-C

A client that sends half a request and waits costs a connection, of which there are so many. A request's header has a
time limit in all, and where every connection is taken, the one that has kept the server waiting longest is closed
for the new one. Connections whose question is being answered are never closed.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..base.errors import BadValue
from .answers import JsonAnswer
from .guard import HEADERS, LOCAL, Receive, Scope, Send

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Protocol
    from uvicorn.server import Server

    from .operations import Observer
else:
    _Protocol = object  # uvicorn is imported when a server starts; `_protocol` puts the two together

ACCEPTED_AT_ONCE = 8  # connections, so that a crowd does not use up the process's files before it is counted
BACKLOG = 1024  # connections that wait to be accepted
LINGER = 1.0  # s for which a connection that was refused stays open
RECEIVED = "received_s"  # in a request's `state`: when its first byte came, by the loop's clock
RESERVED_FILES = 72  # of this process: pipes to workers, files that are read, connections on their way out


class ServedApp(Protocol):
    """An ASGI application that knows how its server stands; `web.app` and `web.mock` have one each."""

    connections: Callable[[], int]
    observer: Observer
    refusal: Callable[[int, str], JsonAnswer]  # the application's own form of an error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

    def stop(self) -> None:
        """The server has ended."""


class ServerLimits(NamedTuple):
    """What clients may take; seconds and connections."""

    header_s: float = 10.0  # for all of a request's header
    idle_s: float = 15.0  # between two requests of a connection
    answer_s: float = 120.0  # for a client to take an answer that it was slow to take
    shutdown_s: float = 10.0  # for answers that are under way when the server is ended
    connections: int = 512

    def of_this_process(self) -> ServerLimits:
        """The same, with as many connections as the process may have open files, which is raised as far as it may be.

        ``ServerLimits(connections=4096).of_this_process()``
        """
        try:
            import resource

            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            wanted = self.connections + RESERVED_FILES
            if soft < wanted and (soft < hard or hard == resource.RLIM_INFINITY):
                soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        except (ImportError, OSError, ValueError):
            return self
        return self._replace(connections=max(4, min(self.connections, soft - RESERVED_FILES)))


def serve(app: ServedApp, door: socket.socket, limits: ServerLimits | None = None) -> None:
    """Answer until SIGTERM or SIGINT; what is under way then has some seconds, a second SIGINT cuts that short."""
    import uvicorn

    limits = limits or ServerLimits().of_this_process()
    config = uvicorn.Config(
        app,
        http=_protocol(app, limits),
        ws="none",
        loop="asyncio",
        log_level="error",
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_keep_alive=int(limits.idle_s),
        timeout_graceful_shutdown=int(limits.shutdown_s),
        backlog=ACCEPTED_AT_ONCE,
    )
    server = _server_class()(config)
    app.connections = lambda: len(server.server_state.connections)
    try:
        server.run(sockets=[door])
    finally:
        app.stop()


@contextmanager
def ends_well() -> Iterator[None]:
    """SIGTERM and Ctrl-C end what is inside, which is no failure; uvicorn handles them itself while it runs, and raises
    them again when all is done."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _server_class() -> type[Server]:
    import uvicorn

    class QuietServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            asyncio.get_running_loop().set_exception_handler(_once_in_a_while())
            for door in sockets or []:
                door.listen(BACKLOG)  # uvicorn's backlog is also how many are accepted at once

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await super().shutdown(sockets)
            if self.force_exit:  # uvicorn leaves the application running then, and tells of its end as of a failure
                await self.lifespan.shutdown()

    return QuietServer


def _once_in_a_while(seconds: float = 30.0) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """The loop's complaints, each only so often: one about files that are used up comes thousands of times."""
    last: dict[str, float] = {}

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message, now = str(context.get("message")), time.monotonic()
        if now - last.get(message, -seconds) >= seconds:
            last[message] = now
            loop.default_exception_handler(context)

    return handle


class BoundedConnection(_Protocol):
    """uvicorn's protocol with limits on headers and connections, and whose own answers are as all others."""

    web_app: ServedApp
    limits: ServerLimits
    header_timer: asyncio.TimerHandle | None = None
    answer_timer: asyncio.TimerHandle | None = None
    since = 0.0  # when it was made, or last answered
    started = False  # whether anything of the next request has come
    refused = False  # whatever comes now is not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it; where there are too many, one has to go."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self._start_timer()
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Its time limits go with it."""
        self._stop_timer()
        self._answer_is_taken()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The time limit holds from a request's first byte, noted in its `state`, until its header is there."""
        if self.refused:
            return
        if not self.started:
            self.app_state = {**self.app_state, RECEIVED: self.loop.time()}
        self.started = True
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._between_requests():
            self._stop_timer()
        elif self.header_timer is None:
            self._start_timer()

    def on_response_complete(self) -> None:
        """The next request may come; where its first byte is here already, it has waited for this."""
        self.since, self.started = self.loop.time(), False
        self.app_state = {**self.app_state, RECEIVED: self.since}
        if not self.flow.write_paused:
            self._answer_is_taken()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not take its answer as fast as it comes: from now on it has so long for all of it."""
        super().pause_writing()
        if self.answer_timer is None:
            self.answer_timer = self.loop.call_later(self.limits.answer_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Some of the answer was taken; the time limit stays until all of it has been written."""
        super().resume_writing()
        if self._between_requests():
            self._answer_is_taken()

    def timeout_keep_alive_handler(self) -> None:
        """Close it; without waiting for a client that does not even take its last answer."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(LINGER, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """What could not be read as a request."""
        self._refuse(400, "this is not valid HTTP")

    def keeps_us_waiting(self) -> bool:
        """Whether the server waits for the client: for a request, the rest of one, or for an answer to be taken."""
        return self._between_requests() or self.cycle.more_body or self.flow.write_paused

    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start_timer(self) -> None:
        self.header_timer = self.loop.call_later(self.limits.header_s, self._too_slow)

    def _stop_timer(self) -> None:
        if self.header_timer is not None:
            self.header_timer.cancel()
            self.header_timer = None

    def _answer_is_taken(self) -> None:
        if self.answer_timer is not None:
            self.answer_timer.cancel()
            self.answer_timer = None

    def _make_room(self) -> None:
        others = [one for one in self.connections if isinstance(one, BoundedConnection) and one is not self]
        slow = [one for one in others if one.keeps_us_waiting()]
        if slow:
            slowest = min(slow, key=lambda one: one.since)
            self.connections.discard(slowest)  # now: it is lost only when the loop comes to it
            slowest.transport.abort()
        else:
            number = self.limits.connections
            self._refuse(503, f"{number:,} connections are open: try again in a moment")
            self.transport.close()

    def _too_slow(self) -> None:
        self.header_timer = None
        if self.started and not self.transport.is_closing():
            self._refuse(408, f"the request's header did not come within {self.limits.header_s:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: int, sentence: str) -> None:
        import h11

        answer = self.web_app.refusal(status, sentence)
        self.web_app.observer.note(self.client[0] if self.client else "-", "-", "-", answer.status)
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(answer.body)).encode())]
        response = h11.Response(status_code=answer.status, headers=[*head, (b"connection", b"close"), *HEADERS])
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (response, h11.Data(data=answer.body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.refused = True
        self._stop_timer()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.abort)  # closed with bytes unread, the answer would be lost


def _protocol(app: ServedApp, limits: ServerLimits) -> type[asyncio.Protocol]:
    from uvicorn.protocols.http.h11_impl import H11Protocol

    return type("Connection", (BoundedConnection, H11Protocol), {"web_app": app, "limits": limits})


# ------------------------------------------------------------------ where it is


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; a sentence where that cannot be."""
    if not 0 <= port <= 65535:
        raise BadValue(f"`port` must be between 0 and 65,535, not {port:,}")
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        door = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named: asyncio sets TCP_NODELAY then
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(place)
        door.listen(BACKLOG)  # a connection before the server is ready waits
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadValue(f"`host` {host} `port` {port} cannot be used: {why}") from None
    return door


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host: ``is_loopback("127.0.0.1")``"""
    import ipaddress

    if host.lower() in LOCAL:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def own_names(host: str) -> list[str]:
    """What other machines may call a server at a host: this machine's names, and where it listens at all, addresses."""
    names = [socket.gethostname()]
    if "." not in names[0]:
        names.append(socket.getfqdn())
    if host not in ("0.0.0.0", "::", ""):
        return list(dict.fromkeys([host, *names]))
    return list(dict.fromkeys([*_addresses(), *names]))


def _addresses() -> list[str]:
    """The addresses from which this machine would speak to others; nothing is sent to find out."""
    addresses = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                addresses.append(str(probe.getsockname()[0]))
        except OSError:
            continue
    return addresses
