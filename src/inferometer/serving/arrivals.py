"""When requests are sent: at times of their own (open loop), or when others end (closed loop, conversations).

``feed.next`` is when the engine gets the next request, ``feed.take(t)`` gives those that it has got by t, and
``feed.ended(i, t)`` tells that one ended, which may let others go. The time that a request spends in the front end
before the engine sees it is added here: a fixed one, and that of reading its prompt, one after the other, which makes a
burst wait. A request's arrival is when its client sends it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Container, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Protocol

import numpy as np

from ..base.errors import BadValue, check_int
from .trace import Trace


class RequestSource(Protocol):
    """Where a replica's requests come from."""

    next: float  # when the next one is there; inf: not before another ends

    def take(self, now: float) -> list[int]:
        """Requests that are there by now, in order."""
        raise NotImplementedError


class OpenLoop:
    """Requests at given times: ``Open(ids, times, arrival, 0.003)``, sorted by time; ``reading``: s for each prompt."""

    def __init__(
        self,
        ids: list[int],
        times: list[float],
        arrival: array[float],
        overhead: float = 0.0,
        reading: Sequence[float] = (),
    ) -> None:
        self.ids, self.times, self.arrival, self.overhead, self.reading = ids, [*times, inf], arrival, overhead, reading
        self.there, free = [time + overhead for time in self.times], -inf
        for place, i in enumerate(ids if reading else ()):
            free = max(times[place], free) + reading[i]
            self.there[place] = free + overhead
        self.place = 0
        self.next = self.there[0]

    def take(self, now: float) -> list[int]:
        """Requests that are there by now, in order."""
        start = place = self.place
        times, there, arrival, ids = self.times, self.there, self.arrival, self.ids
        while there[place] <= now:
            arrival[ids[place]] = times[place]
            place += 1
        self.place = place
        self.next = there[place]
        return ids[start:place]


class RouterInbox:
    """Requests that a router hands on: ``inbox.push(i, t)``, in order of time."""

    def __init__(self) -> None:
        self.queue: deque[tuple[float, int]] = deque()
        self.next = inf

    def push(self, i: int, now: float) -> None:
        """A request is there from now on."""
        self.queue.append((now, i))
        self.next = self.queue[0][0]

    def take(self, now: float) -> list[int]:
        """Requests that are there by now, in order."""
        found = []
        while self.queue and self.queue[0][0] <= now:
            found.append(self.queue.popleft()[1])
        self.next = self.queue[0][0] if self.queue else inf
        return found


class ClosedLoop:
    """At most ``most`` requests at once, and turns of a conversation one after the other.

    A request is ready at its time or when the one it waits for has ended and its user has thought; it is sent when it
    is ready and a place is free.
    """

    def __init__(
        self,
        trace: Trace,
        arrival: array[float],
        most: int | None,
        overhead: float = 0.0,
        rejected: Container[int] = (),
        reading: Sequence[float] = (),
    ) -> None:
        n = len(trace)
        self.arrival, self.overhead, self.rejected, self.reading = arrival, overhead, rejected, reading
        self.free = -inf  # when the front end has read the prompts that were sent
        times = np.zeros(n) if trace.arrival_s is None else np.nan_to_num(trace.arrival_s, nan=0.0)
        self.times: list[float] = times.tolist()
        self.think: list[float] = [0.0] * n if trace.think_s is None else np.nan_to_num(trace.think_s, nan=0.0).tolist()
        before = [-1] * n if trace.after is None else trace.after.tolist()
        self.followers: dict[int, list[int]] = {}
        for i, other in enumerate(before):
            if other >= 0:
                self.followers.setdefault(other, []).append(i)
        self.ready = [(self.times[i], i) for i in range(n) if before[i] < 0]
        heapify(self.ready)
        self.places: deque[float] | None = deque([-inf] * most) if most is not None else None
        self._look()

    def _look(self) -> None:
        if not self.ready or (self.places is not None and not self.places):
            self.sends = self.next = inf
        else:
            self.sends = max(self.ready[0][0], self.places[0] if self.places else -inf)
            read = max(self.sends, self.free) + self.reading[self.ready[0][1]] if self.reading else self.sends
            self.next = read + self.overhead

    def take(self, now: float) -> list[int]:
        """Requests that are there by now, in order."""
        found = []
        while self.next <= now:
            _, i = heappop(self.ready)
            if self.places is not None:
                self.places.popleft()
            self.free = self.next - self.overhead
            sent = self.arrival[i] = self.sends
            if i in self.rejected:
                self.ended(i, sent)
                continue
            found.append(i)
            self._look()
        return found

    def ended(self, i: int, now: float) -> float:
        """A request is over: its place is free, and the turn after it may come. Gives when its blocks are free: now."""
        if self.places is not None:
            self.places.append(now)
        for j in self.followers.pop(i, ()):
            heappush(self.ready, (max(self.times[j], now + self.think[j]), j))
        self._look()
        return now


def is_closed_loop(trace: Trace, max_concurrency: int | None) -> bool:
    """Whether when a request is sent depends on how others fare."""
    return (
        max_concurrency is not None
        or trace.arrival_s is None
        or (trace.after is not None and bool((trace.after >= 0).any()))
    )


def by_arrival(trace: Trace) -> tuple[list[int], list[float]]:
    """Requests by time of arrival, those of one time as they stand in the file; unknown times count as 0."""
    assert trace.arrival_s is not None
    times = np.nan_to_num(trace.arrival_s, nan=0.0)
    order = np.argsort(times, kind="stable")
    return order.tolist(), times[order].tolist()


# ------------------------------------------------------------------ traffic
# The requests that the words of ``simulate`` and ``bench`` ask for: those of a trace, or made up.
#
# traffic({"num_prompts": 100, "request_rate": 8.0}, None)        # a Trace, and '1024 in, 128 out, at 8/s'


TRAFFIC_DEFAULTS: Mapping[str, Any] = {  # the words that are about requests, and what they are where nobody says
    "trace": None,
    "num_prompts": None,
    "request_rate": None,
    "burstiness": 1.0,
    "input_len": None,
    "output_len": None,
    "prefix_len": 0,
    "turns": None,
    "think_time": None,
    "seed": 0,
}


def load_traffic(words: dict[str, Any], limit: int | None) -> tuple[Any, str]:
    """Take the words that are about requests (``limit``: --max-concurrency); give them, and what they are in words."""
    w = {**TRAFFIC_DEFAULTS, **{key: words.pop(key) for key in TRAFFIC_DEFAULTS if key in words}}
    if limit is not None:
        check_int("--max-concurrency", limit, most=10**7)
    if w["trace"] is not None:
        return _replayed(w, limit)
    from .synthetic import synthetic

    rate = float("inf") if w["request_rate"] is None else w["request_rate"]
    made = synthetic(
        num_prompts=_or(w["num_prompts"], 1000),
        request_rate=rate,
        burstiness=w["burstiness"],
        input_len=_or(w["input_len"], 1024),
        output_len=_or(w["output_len"], 128),
        prefix_len=w["prefix_len"],
        turns=_or(w["turns"], 1),
        think_time=_or(w["think_time"], 0),
        users=limit,
        seed=w["seed"],
        block_tokens=words.get("block_size") or 16,
    )
    lengths = f"{_or(w['input_len'], 1024)} in, {_or(w['output_len'], 128)} out"
    how = f"at {rate:g}/s" if rate != float("inf") else "all at once" if limit is None else f"{limit} at a time"
    return made, f"{lengths}, {how}" + (f", conversations of {w['turns']} turns" if w["turns"] else "")


def _replayed(w: dict[str, Any], limit: int | None) -> tuple[Any, str]:
    for key in ("input_len", "output_len", "turns"):
        if w[key]:
            raise BadValue(f"--trace says all lengths itself and cannot be combined with --{key.replace('_', '-')}")
    from .synthetic import at_rate, with_shared_prefix, with_users
    from .trace import first_requests, read_trace

    trace = read_trace(w["trace"])
    if w["num_prompts"] is not None:
        trace = first_requests(trace, check_int("--num-prompts", w["num_prompts"]))
    if w["prefix_len"]:
        trace = with_shared_prefix(trace, w["prefix_len"])
    if w["think_time"] is not None:
        trace = with_users(trace, limit, w["think_time"], w["seed"])
    how = "one after another" if trace.arrival_s is None and limit is None else "as they came"
    if w["request_rate"] is not None:
        trace = at_rate(trace, w["request_rate"], w["burstiness"], w["seed"])
        how = f"at {w['request_rate']:g}/s"
    if limit is not None:
        how += f", {limit} at a time" if trace.arrival_s is not None else ""
        how = how if trace.arrival_s is not None else f"{limit} at a time"
    return trace, f"of {file_name(trace.source)}, {how}"


def file_name(path: str) -> str:
    """The name of a file without its folders, for headers."""
    return path.replace("\\", "/").rpartition("/")[2]


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
