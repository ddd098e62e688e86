"""Drives a live OpenAI-compatible server: sends requests when they are due and times every token that comes back.

generator = LoadGenerator(BenchTarget("http://localhost:8000", "meta-llama/Llama-3.1-8B-Instruct"), requests)
asyncio.run(generator.drive())
generator.replies      # one per request: when it was sent, its first and last token, or what went wrong
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from ..base.errors import BadValue, UnknownName, abbreviate
from .http_stream import Broken, Refused, get, post

WATCH_EVERY = 0.02  # s
APIS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class BenchTarget(NamedTuple):
    """Where to send, as what, and how long to wait for one answer."""

    base_url: str
    model: str
    api: str = "completions"
    timeout: float = 600.0
    headers: Mapping[str, str] = {}
    extra: Mapping[str, Any] = {}  # of the body; None takes a key away

    @property
    def url(self) -> str:
        """The address of the chosen API; a base that ends in /v1 is as good."""
        return server_root(self.base_url) + APIS[self.api]


class PlannedRequest(NamedTuple):
    """One request to send: the prompt as token ids or text, the length of the answer, and when it is due."""

    prompt: Callable[[], Sequence[int] | str]  # made when it is sent: a million prompts would not fit
    output_tokens: int
    due: float | None  # s after the start; None: when the one before it has ended
    after: int = -1  # the request that must have ended
    think: float = 0.0  # s after that end


class Reply(msgspec.Struct, kw_only=True):
    """What became of a request; seconds after the start of the run, nan where it never came to that."""

    sent: float = math.nan
    first: float = math.nan
    last: float = math.nan
    input_tokens: int = 0  # as the server counts
    output_tokens: int = 0
    gaps: list[float] = []  # s between events
    late: float = 0.0  # s between when it was due and when it was sent
    connect: float = 0.0  # s of that, or before, that the connection took
    error: str = ""
    counted: bool = False  # whether output_tokens is the server's own count, not that of events
    cancelled: bool = False  # under way when the run was cut short
    text: str = ""


def server_root(base_url: str, argument: str = "base_url") -> str:
    """The address without its path: ``root("http://host:8000/v1/")  # 'http://host:8000'``"""
    from urllib.parse import urlsplit

    user, shown = False, re.sub(r"//[^/?#]*@", "//…@", base_url)  # a password is not printed
    try:
        parts = urlsplit(base_url.strip())
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        user = "@" in parts.netloc
    except ValueError:
        good = False
    if not good:
        raise BadValue(f"`{argument}` must be an address such as http://localhost:8000, not {abbreviate(shown)}")
    if user:
        raise BadValue(f"`{argument}` must have no user name or password, unlike {abbreviate(shown)}: use `api_key`")
    return base_url.strip().rstrip("/").removesuffix("/v1")


async def check_serves(server: BenchTarget) -> None:
    """Refuse an address where no server answers, or one that does not serve the model."""
    try:
        async with asyncio.timeout(min(server.timeout, 30.0)):
            answer = await get(server_root(server.base_url) + "/v1/models", server.headers)
        served = [str(m["id"]) for m in msgspec.json.decode(answer.body)["data"]]
    except (Broken, TimeoutError) as error:
        raise BadValue(f"no server answers at {server.base_url}: {str(error) or 'no response in time'}") from None
    except (Refused, msgspec.DecodeError, LookupError, TypeError):
        return  # a server without a list of models may still serve
    if served and server.model not in served:
        raise UnknownName(f"model at {server.base_url}", server.model, served)


class LoadGenerator:
    """Sends planned requests and collects the replies; those that came stay when a run is cut short."""

    def __init__(
        self,
        server: BenchTarget,
        requests: Sequence[PlannedRequest],
        max_concurrency: int | None = None,
        progress: Callable[[Reply], None] = lambda reply: None,
        warmups: Sequence[PlannedRequest] = (),
    ) -> None:
        server_root(server.base_url)
        self.warmups, self.failed_warmups = warmups, ""
        self.server, self.requests, self.progress = server, requests, progress
        self.limit = max_concurrency
        self.replies: list[Reply | None] = [None] * len(requests)
        self.start = 0.0
        self._watching = True
        self.lags: list[float] = []  # s that this process was late to do what was due, many times a second

    async def drive(self) -> None:
        """Warm up, send everything and wait for the last answer."""
        await check_serves(self.server)
        if self.warmups:
            await self._warm_up()
        loop = asyncio.get_running_loop()
        self._watch(loop, loop.time())
        try:
            await self._send_all()
        finally:
            self._watching = False

    def _watch(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        """Note how late this call is: what comes from the server meanwhile is timed as late."""
        if self._watching:
            now = loop.time()
            self.lags.append(now - due)
            loop.call_at(now + WATCH_EVERY, self._watch, loop, now + WATCH_EVERY)

    async def _warm_up(self) -> None:
        """Requests whose answers are not counted; what fails is remembered."""
        slots = asyncio.Semaphore(self.limit or len(self.warmups))

        async def one(request: PlannedRequest) -> str:
            async with slots:
                return (await self._send(request)).error

        errors = [error for error in await asyncio.gather(*map(one, self.warmups)) if error]
        if errors:
            self.failed_warmups = f"{len(errors):,} of {len(self.warmups):,} warm-up requests failed: {errors[0]}"

    async def _send_all(self) -> None:
        one_by_one = all(request.due is None and request.after < 0 for request in self.requests)
        slots = asyncio.Semaphore(self.limit or (1 if one_by_one else len(self.requests)))
        ended = [asyncio.Event() for _ in self.requests]
        self.start = perf_counter()
        waiting: set[asyncio.Task[None]] = set()
        for index in sorted(range(len(self.requests)), key=lambda i: self.requests[i].due or 0.0):
            request = self.requests[index]
            await self._until(request.due or 0.0)
            if request.after < 0:
                await slots.acquire()  # before the task: so few of them wait
            task = asyncio.create_task(self._send_when_due(index, request, slots, ended))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.gather(*waiting)

    async def _until(self, due: float) -> None:
        left = self.start + due - perf_counter()
        if left > 0:
            await asyncio.sleep(left)

    async def _send_when_due(
        self, index: int, request: PlannedRequest, slots: asyncio.Semaphore, ended: list[asyncio.Event]
    ) -> None:
        due = request.due
        if request.after >= 0:
            await ended[request.after].wait()
            due = perf_counter() - self.start + request.think
            await asyncio.sleep(request.think)
            await slots.acquire()
        begun = perf_counter() - self.start
        try:
            reply = await self._send(request)
            if due is not None and self.limit is None:
                reply.late = max(0.0, reply.sent - due)
            self.replies[index] = reply
            self.progress(reply)
        except asyncio.CancelledError:
            self.replies[index] = Reply(sent=begun, cancelled=True)
            raise
        finally:
            slots.release()
            ended[index].set()

    async def _send(self, request: PlannedRequest) -> Reply:
        """One request and its answer; what goes wrong is a part of the reply."""
        body = payload(self.server, request)
        reply = Reply(sent=perf_counter() - self.start)
        try:
            async with asyncio.timeout(self.server.timeout):
                answer = await post(self.server.url, body, self.server.headers)
        except TimeoutError:
            reply.error = f"no complete response within {self.server.timeout:g} s"
        except (Broken, Refused) as error:
            reply.error = str(error)
        else:
            reply.sent, reply.connect = answer.sent - self.start, answer.sent - answer.began
            read_events(reply, [(moment - self.start, data) for moment, data in answer.events()], done=answer.is_done)
        return reply


def payload(server: BenchTarget, request: PlannedRequest) -> bytes:
    """The JSON that asks for a streamed answer of exactly so many tokens."""
    prompt = request.prompt()
    body: dict[str, Any] = {
        "model": server.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": max(1, request.output_tokens),
        "temperature": 0.0,
        "ignore_eos": True,
    }
    if server.api == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    body |= server.extra
    return msgspec.json.encode({key: value for key, value in body.items() if value is not None})


def read_events(reply: Reply, events: list[tuple[float, bytes]], *, done: bool) -> None:
    """Fill a reply from the events of its answer: ``read_events(reply, [(0.1, b'{"choices": …}')], done=True)``

    An answer is whole if the stream was ``done`` or an event has a ``finish_reason``: without chunks, a connection that
    breaks looks like one that ends.
    """
    moments: list[float] = []
    pieces: list[str] = []
    counted = 0
    for moment, data in events:
        try:
            event = msgspec.json.decode(data)
            if isinstance(event, dict) and "error" in event:
                reply.error = f"the server said {abbreviate(event['error'])}"
                return
            if _has_token(event):
                moments.append(moment)
                pieces.append(_text(event["choices"][0]))
            done = done or any(choice.get("finish_reason") for choice in event.get("choices") or ())
            usage = event.get("usage") or {}
            counted = int(usage.get("completion_tokens") or counted)
            reply.input_tokens = int(usage.get("prompt_tokens") or reply.input_tokens)
        except (msgspec.DecodeError, AttributeError, LookupError, TypeError, ValueError):
            reply.error = f"the server sent an event that is not a completion: {abbreviate(data[:60])}"
            return
    if not moments:
        reply.error = "the response has no tokens"
        return
    if not done:
        reply.error = "the response was cut off: it ends without finish_reason or [DONE]"
        return
    reply.first, reply.last = moments[0], moments[-1]
    reply.gaps = [b - a for a, b in pairwise(moments)]
    reply.output_tokens, reply.counted = counted or len(moments), counted > 0
    reply.text = "".join(pieces)


def _text(choice: Mapping[str, Any]) -> str:
    """What a piece of an answer says, in either API."""
    delta = choice.get("delta") or {}
    said = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    return said if isinstance(said, str) else ""


def _has_token(event: Mapping[str, Any]) -> bool:
    """Whether an event carries a token: not one that only names the role, counts, or says why it ended."""
    if not event.get("choices"):
        return False
    choice = event["choices"][0]
    said = choice.get("text")
    if "delta" in choice:
        delta = choice["delta"] or {}
        pieces = [delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls")]
        said = next((piece for piece in pieces if piece), None)
        if said is None and delta.get("role"):
            return False
        said = "" if said is None and any(piece == "" for piece in pieces) else said
    return bool(said) or (said == "" and not choice.get("finish_reason"))
