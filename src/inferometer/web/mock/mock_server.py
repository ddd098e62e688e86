"""The mock: an ASGI application that answers OpenAI's API at the predicted speed.

    app = MockServer(fleet, Served(("llama-3.1-8b",), 8192), output_lengths=[128])
    serve(app, listening("127.0.0.1", 8000), LIMITS)

One timer stands for all streams: when the next simulated step is over, it hands its tokens out and wakes the streams
that have some. A stream that is woken sends all that has come since it was last woken, so a client that reads slowly
gets larger pieces and holds nothing here but two counters.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf, nan
from typing import Any

import msgspec

from ... import __version__
from ...serving.live_fleet import ABORTED, LiveFleet, LiveRequest
from ..answers import JsonAnswer
from ..guard import Receive, Scope, Send
from ..http_server import RECEIVED, ServerLimits
from ..operations import CONTENT_TYPE, Observer, RequestLog
from .filler import Answer, PromptTokens, tokens_of
from .openai_api import Generation, RefusedRequest, Served, Shapes, error_answer, read_request, usage_of
from .vllm_metrics import VllmMetrics

LIMITS = ServerLimits(connections=16_384, answer_s=3600.0)
MAX_BODY = 16_000_000  # bytes of one request
MAX_BODIES = 256_000_000  # bytes of all bodies that are on the way
ABANDONED = 64_000_000  # bytes after which a body is not read on
MOST_TEXT = 1_000_000  # characters that /tokenize cuts: all streams wait meanwhile
BODY_TIMEOUT = 60.0  # s for all of a body
BLOCK = 16  # tokens by which prompts are hashed where no cache asks for others
LEAD_STEP = 0.1  # share of a first token's lateness by which the lead follows it
TO_CONNECT = 0.7e-3  # s in which a client on the same machine connects and sends, until the first byte is here
MOST_LATE = 0.005  # s of lateness that count: a machine that stalls says nothing of its usual lateness
GENERATING = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}
EVENTS = b"text/event-stream; charset=utf-8"


class Choice:
    """One answer on its way: the request in the simulated server, and what its client was sent of it."""

    __slots__ = ("answer", "came_s", "counted", "index", "reason", "request", "sent")

    def __init__(self, index: int, request: LiveRequest, answer: Answer, reason: str) -> None:
        self.index, self.request, self.answer = index, request, answer
        self.reason = reason  # why it will end: length or stop
        self.sent = self.counted = 0  # tokens that the client and the metrics have
        self.came_s = nan  # when the last one that is counted was there

    @property
    def is_sent(self) -> bool:
        """Whether its client has everything that there will be."""
        return self.request.is_over and self.sent == self.request.num_tokens


class Wakeup:
    """What a stream waits for: ``await wakeup.wait()`` returns when `set` was called since the last time, and says
    whether that was yet to come."""

    __slots__ = ("future", "is_set")

    def __init__(self) -> None:
        self.future: asyncio.Future[None] | None = None
        self.is_set = False

    def set(self) -> None:
        """There is something new."""
        self.is_set = True
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    async def wait(self) -> bool:
        """Until there is."""
        waits = not self.is_set
        if waits:
            self.future = asyncio.get_running_loop().create_future()
            await self.future
        self.is_set = False
        return waits


class MockServer:
    """The application with its fleet; ``speed`` 10 lets ten simulated seconds pass in each real one."""

    def __init__(
        self,
        fleet: LiveFleet,
        served: Served,
        output_lengths: Sequence[int],
        *,
        speed: float = 1.0,
        api_key: str | None = None,
        prompt_details: bool = False,
        version: str = "",
        log: str = "off",
    ) -> None:
        from starlette.middleware.cors import CORSMiddleware

        self.fleet, self.served, self.output_lengths, self.speed = fleet, served, output_lengths, speed
        self.key = hashlib.sha256(api_key.encode()).digest() if api_key else b""
        self.prompt_details, self.version = prompt_details, version
        self.hashed_by = fleet.tree.tokens if fleet.tree is not None else BLOCK
        self.metrics = VllmMetrics(served.names[0], served.max_model_len, fleet)
        self.routes = _routes(self)
        self.observer = Observer(self._answer, RequestLog(log), [path for _, path in self.routes])
        every = ("*",)  # pages of any origin may ask, as vLLM lets them
        self.across = CORSMiddleware(self.observer, allow_origins=every, allow_methods=every, allow_headers=every)
        self.connections: Callable[[], int] = lambda: 0
        self.refusal: Callable[[int, str], JsonAnswer] = error_answer
        self.bodies = 0  # bytes that are held
        self.created = int(time.time())
        self.start, self.due = 0.0, inf
        self.lead = 0.0  # real s by which the simulation runs ahead, so that events are written in time
        self.most_lead = fleet.overhead_s / 2 / speed  # within the time that a request takes to reach the engine
        self.timer: asyncio.TimerHandle | None = None
        self.failed = ""  # what went wrong in the simulation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, counted and logged."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await self.across(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """The clock begins with the server."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.start = asyncio.get_running_loop().time()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    def stop(self) -> None:
        """No more tokens."""
        if self.timer is not None:
            self.timer.cancel()

    # ------------------------------------------------------------------ time

    def now(self) -> float:
        """Seconds of the simulated clock."""
        return (asyncio.get_running_loop().time() - self.start) * self.speed

    def _arrival(self, scope: Scope) -> float:
        """When a client began with a request that is here now, on the simulated clock: before its first byte was here.

        What a client takes to connect and to send is in the front end's simulated time, as bench sees it. What it
        takes beyond that is not: the simulation has gone on meanwhile, and a server waits for a request's end, too.
        """
        ago: float = asyncio.get_running_loop().time() - scope.get("state", {}).get(RECEIVED, inf) + TO_CONNECT
        return self.now() - self.speed * min(max(ago, TO_CONNECT), self.most_lead)

    def _arm(self, due: float) -> None:
        """The timer for the next step."""
        if self.timer is not None:
            self.timer.cancel()
        self.due, loop = due, asyncio.get_running_loop()
        self.timer = loop.call_at(self.start + due / self.speed - self.lead, self._tick) if due < inf else None

    def _tick(self) -> None:
        """A step is over."""
        try:
            self._arm(self.fleet.advance(self.now() + self.lead * self.speed))
        except Exception as error:
            self.failed = f"the simulation failed: {error!r}"
            for request in list(self.fleet.requests.values()):
                request.reason = request.reason or self.failed
                request.wake()
            raise

    def _follow_lateness(self, request: LiveRequest) -> None:
        """A first token is written: the lead grows if that is after its simulated moment, and shrinks if it is before.

        What vLLM takes to write an event is in its front end's simulated time, so what the mock takes belongs there.
        """
        late = (self.now() - request.last_token_s) / self.speed
        late = min(max(late, -MOST_LATE), MOST_LATE)
        self.lead = min(max(self.lead + LEAD_STEP * late, 0.0), self.most_lead)

    # ------------------------------------------------------------------ one request

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        try:
            if self.key and path.startswith("/v1"):
                self._check_key(scope)
            route = self.routes.get((method, path)) or self.routes.get(("GET" if method == "HEAD" else "", path))
            if route is None:
                known = any(path == other for _, other in self.routes)
                raise RefusedRequest("Method Not Allowed" if known else "Not Found", None, 405 if known else 404)
            await route(scope, receive, send)
        except RefusedRequest as refused:
            await reply(send, refused.answer)

    def _check_key(self, scope: Scope) -> None:
        given = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
        scheme, _, secret = given.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(hashlib.sha256(secret).digest(), self.key):
            raise RefusedRequest("Unauthorized: this server requires its API key as a bearer token", None, 401)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """All of a body; one that is too large is read to its end, and forgotten."""
        kind = next((value for name, value in scope["headers"] if name.lower() == b"content-type"), b"")
        if kind.partition(b";")[0].strip().lower() != b"application/json":
            raise RefusedRequest("Unsupported Media Type: Only 'application/json' is allowed")
        parts: list[bytes] = []
        held = received = 0
        more = True
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise RefusedRequest("the request was aborted")
                    part = message.get("body", b"")
                    received += len(part)
                    more = message.get("more_body", False) and received <= ABANDONED
                    if received <= MAX_BODY:
                        parts.append(part)
                        held += len(part)
                        self.bodies += len(part)
                        if self.bodies > MAX_BODIES:
                            raise RefusedRequest("too much is being sent at once: try again in a moment", None, 503)
        except TimeoutError:
            raise RefusedRequest(f"the request did not come within {BODY_TIMEOUT:g} s", None, 408) from None
        finally:
            self.bodies -= held
        if received > MAX_BODY:
            raise RefusedRequest(f"a request may have {MAX_BODY:,} bytes", None, 413)
        return b"".join(parts)

    async def generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A completion or a chat: tokens as they come, or all at the end."""
        body = await self._body(scope, receive)
        arrival = self._arrival(scope)
        if self.failed:
            raise RefusedRequest(self.failed, None, 500)
        generation = read_request(body, GENERATING[scope["path"]], self.served)
        del body
        try:
            await self._respond(generation, arrival, receive, send)
        except asyncio.CancelledError:  # the server ends, and this took longer than it waits
            closing = error_answer(503, "the server is shutting down")
            if generation.stream:
                await send({"type": "http.response.body", "body": error_events(closing)})
            else:
                await reply(send, closing)

    async def _respond(self, generation: Generation, arrival: float, receive: Receive, send: Send) -> None:
        shapes, wakeup = Shapes(generation.api, self.served.names[0]), Wakeup()
        choices: list[Choice] = []
        async with self._watched(receive, generation, wakeup, choices) as gone:
            self._submit(generation, arrival, wakeup, choices)
            if generation.stream:
                await reply_head(send, 200, EVENTS)
                async for events in self._events(generation, shapes, choices, wakeup, gone):
                    await send({"type": "http.response.body", "body": events, "more_body": True})
                if not gone:
                    await send({"type": "http.response.body", "body": b""})
            else:
                while not gone and not all(choice.request.is_over for choice in choices):
                    await wakeup.wait()
                if not gone:
                    await reply(send, self._whole(generation, shapes, choices))

    @asynccontextmanager
    async def _watched(
        self, receive: Receive, generation: Generation, wakeup: Wakeup, choices: list[Choice]
    ) -> AsyncIterator[list[bool]]:
        """Whatever ends a request, its sequences leave the server; the list is not empty once the client is gone."""
        gone: list[bool] = []

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.append(True)
            wakeup.set()

        watcher = asyncio.create_task(watch())
        try:
            yield gone
        finally:
            watcher.cancel()
            for choice in choices:
                self._end(generation, choice)

    def _end(self, generation: Generation, choice: Choice) -> None:
        """A sequence leaves the server, if it is still there."""
        request = choice.request
        self._count(choice)
        self.fleet.abort(request)
        reason = choice.reason if not request.reason else "abort" if request.reason == ABORTED else "error"
        self.metrics.on_over(request, reason, generation.n, generation.max_tokens)

    def _submit(self, generation: Generation, arrival: float, wakeup: Wakeup, choices: list[Choice]) -> None:
        """Every choice is a sequence of its own, as in vLLM."""
        for prompt in generation.prompts:
            prompt.seal(self.hashed_by)
            for k in range(generation.n):
                answer = prompt.answer(generation.seed + k)
                length, reason = self._length(generation, prompt, answer)
                request = self.fleet.submit(arrival, answer, length, generation.priority)
                if request is None:
                    raise RefusedRequest(
                        "the server holds as many requests as it can: try again in a moment", None, 503
                    )
                choices.append(Choice(len(choices), request, answer, reason))
                request.wake = partial(self._on_news, choices[-1], wakeup)
        if (due := self.fleet.due()) < self.due:
            self._arm(due)

    def _length(self, generation: Generation, prompt: PromptTokens, answer: Answer) -> tuple[int, str]:
        """How many tokens an answer will have, and why it ends then."""
        room = self.served.max_model_len - prompt.num_tokens
        most = room if generation.max_tokens is None else min(generation.max_tokens, room)
        own = self.output_lengths[answer.start % len(self.output_lengths)]
        ends = max(own, generation.min_tokens, 1)
        return (most, "length") if generation.ignore_eos or ends >= most else (ends, "stop")

    # ------------------------------------------------------------------ tokens

    def _on_news(self, choice: Choice, wakeup: Wakeup) -> None:
        """Tokens of an answer have come; they count now, whenever its client takes them."""
        self._count(choice)
        wakeup.set()

    def _count(self, choice: Choice) -> None:
        request = choice.request
        came = request.num_tokens - choice.counted
        if came > 0:
            self.metrics.on_tokens(request, came, request.last_token_s - choice.came_s)
            choice.counted, choice.came_s = request.num_tokens, request.last_token_s

    async def _events(
        self, generation: Generation, shapes: Shapes, choices: list[Choice], wakeup: Wakeup, gone: list[bool]
    ) -> AsyncIterator[bytes]:
        """Server-sent events, as many at once as there are."""
        if shapes.chat:
            yield b"".join([shapes.begin(choice.index) for choice in choices])
        open_choices = choices
        while open_choices:
            waited = await wakeup.wait()
            if gone:
                return
            events = [self._event(generation, shapes, choice, waited) for choice in open_choices if not choice.is_sent]
            broken = next((choice.request.reason for choice in open_choices if choice.request.reason), "")
            if broken:
                events.append(error_events(error_answer(500, broken)))
            if any(events):
                yield b"".join(events)
            if broken:
                return
            open_choices = [choice for choice in open_choices if not choice.is_sent]
        last = b"data: [DONE]\n\n"
        yield shapes.usage_event(self._usage(generation, choices)) + last if generation.include_usage else last

    def _event(self, generation: Generation, shapes: Shapes, choice: Choice, waited: bool) -> bytes:
        """What has come of one answer since the last event; nothing if nothing has."""
        sent, usage = choice.sent, None
        choice.sent = choice.request.num_tokens
        if choice.sent == sent:
            return b""
        if waited and not sent:  # where the client was slow to take the event before, it is not the mock that is late
            self._follow_lateness(choice.request)
        if generation.continuous_usage:
            usage = usage_of(choice.request.input_tokens, choice.sent)
        text = choice.answer.text(sent, choice.sent)
        return shapes.piece(choice.index, text, choice.reason if choice.is_sent else None, usage)

    def _whole(self, generation: Generation, shapes: Shapes, choices: list[Choice]) -> JsonAnswer:
        """The answers of a request that does not stream."""
        broken = next((choice.request.reason for choice in choices if choice.request.reason), "")
        if broken:
            return error_answer(500, broken)
        for choice in choices:
            choice.sent = choice.request.num_tokens
        texts = [(choice.answer.text(0, choice.sent), choice.reason) for choice in choices]
        return JsonAnswer(200, shapes.whole(texts, self._usage(generation, choices)))

    def _usage(self, generation: Generation, choices: list[Choice]) -> dict[str, Any]:
        prompt_tokens = sum(prompt.num_tokens for prompt in generation.prompts)
        cached = choices[0].request.num_cached_tokens if self.prompt_details else None
        return usage_of(prompt_tokens, sum(choice.sent for choice in choices), cached)

    # ------------------------------------------------------------------ all else

    async def models(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The one model, under all its names."""
        common = {"object": "model", "created": self.created, "owned_by": "inferometer", "parent": None}
        cards = [
            {"id": name, **common, "root": self.served.names[0], "max_model_len": self.served.max_model_len}
            for name in self.served.names
        ]
        await reply(send, JsonAnswer(200, msgspec.json.encode({"object": "list", "data": cards})))

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 as long as the simulation runs."""
        await reply(send, JsonAnswer(500 if self.failed else 200, b""))

    async def tell_version(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The engine's version, and whose mock it is."""
        version = {"version": self.version, "mock": f"inferometer {__version__}"}
        await reply(send, JsonAnswer(200, msgspec.json.encode(version)))

    async def tell_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """vLLM's metrics, and those of HTTP."""
        text = self.metrics.text() + self.observer.metrics.text()
        await reply(send, JsonAnswer(200, text), CONTENT_TYPE.encode())

    async def tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        """How many tokens a text counts as."""
        try:
            given = msgspec.json.decode(await self._body(scope, receive), type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise RefusedRequest('the request must be an object such as {"prompt": "…"}') from None
        if not isinstance(given.get("prompt"), str):
            raise RefusedRequest("prompt must be a text", "prompt")
        if len(given["prompt"]) > MOST_TEXT:
            raise RefusedRequest(f"prompt may have {MOST_TEXT:,} characters here", "prompt")
        pieces = tokens_of(given["prompt"], MOST_TEXT)
        answer = {"count": len(pieces), "max_model_len": self.served.max_model_len, "token_strs": pieces}
        await reply(send, JsonAnswer(200, msgspec.json.encode(answer)))


def _routes(app: MockServer) -> dict[tuple[str, str], Callable[[Scope, Receive, Send], Any]]:
    return {
        **{("POST", path): app.generate for path in GENERATING},
        ("GET", "/v1/models"): app.models,
        ("GET", "/health"): app.health,
        ("GET", "/ping"): app.health,
        ("GET", "/version"): app.tell_version,
        ("GET", "/metrics"): app.tell_metrics,
        ("POST", "/tokenize"): app.tokenize,
    }


def error_events(answer: JsonAnswer) -> bytes:
    """How a stream ends that cannot go on."""
    return b"data: %b\n\ndata: [DONE]\n\n" % answer.body


async def reply_head(send: Send, status: int, kind: bytes, length: int | None = None) -> None:
    """The head of an answer."""
    headers = [(b"content-type", kind), (b"cache-control", b"no-store")]
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    if status >= 400:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def reply(send: Send, answer: JsonAnswer, kind: bytes = b"application/json") -> None:
    """A whole answer."""
    await reply_head(send, answer.status, kind, len(answer.body))
    await send({"type": "http.response.body", "body": answer.body})
