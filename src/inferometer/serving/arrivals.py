"""When requests are sent: at times of their own (open loop), or when others finish (closed loop, conversations).

``source.next`` is when the engine gets the next request, ``source.take(t)`` gives those that it has got by t, and
``source.finished(i, t)`` tells a closed loop that one finished, which may let others go. The time that a request spends
in the front end before the engine sees it is added here: a fixed one (``overhead``), and that of tokenizing its prompt
(``tokenize_s``), one after the other on each of ``api_server_count`` front ends, which makes a burst wait. A request's
arrival is when its client sends it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Container, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Protocol

import numpy as np

from .trace import Trace


class RequestSource(Protocol):
    """Where a replica's requests come from."""

    next: float  # s: when the next one is there; inf: not before another finishes

    def take(self, now: float) -> list[int]:
        """Requests that are there by now, in order."""
        raise NotImplementedError


class OpenLoop:
    """Requests at given times, sorted: ``OpenLoop(ids, times, table.arrival_s, overhead=0.003)``

    ``tokenize_s``: seconds that the front end takes for the prompt of every request of the trace.
    """

    def __init__(
        self,
        ids: list[int],
        times: list[float],
        arrival_s: array[float],
        overhead: float = 0.0,
        tokenize_s: Sequence[float] = (),
        api_server_count: int = 1,
    ) -> None:
        self.ids, self.arrival_s, self.overhead, self.tokenize_s = ids, arrival_s, overhead, tokenize_s
        self.api_server_count = api_server_count
        self.times = [*times, inf]  # the last one is never reached: `take` needs no check for the end
        self.ready = [time + overhead for time in self.times]  # when the engine has them
        servers_free = [-inf] * api_server_count  # of each front end, when it has read the prompts that it was sent
        for index, i in enumerate(ids if tokenize_s else ()):
            time = times[index]
            read = (time if time > servers_free[0] else servers_free[0]) + tokenize_s[i]
            heapreplace(servers_free, read)
            ready = read + overhead  # requests stay in order: a short prompt does not overtake
            self.ready[index] = ready if not index or ready > self.ready[index - 1] else self.ready[index - 1]
        self.index = 0
        self.next = self.ready[0]

    @property
    def last_arrival(self) -> float:
        """When the last request is sent; 0 if there is none."""
        return self.times[-2] if self.ids else 0.0

    def every(self, start: int, stride: int) -> OpenLoop:
        """The requests that one of ``stride`` replicas gets when they are dealt out in turn."""
        share = slice(start, len(self.ids), stride)
        return OpenLoop(
            self.ids[share], self.times[share], self.arrival_s, self.overhead, self.tokenize_s, self.api_server_count
        )

    def take(self, now: float) -> list[int]:
        """Requests that are there by now, in order."""
        start = index = self.index
        times, ready, arrival_s, ids = self.times, self.ready, self.arrival_s, self.ids
        while ready[index] <= now:
            arrival_s[ids[index]] = times[index]
            index += 1
        self.index = index
        self.next = ready[index]
        return ids[start:index]


class RouterInbox:
    """Requests that a router hands to a replica: ``inbox.push(i, t)``, in order of time."""

    def __init__(self) -> None:
        self.queue: deque[tuple[float, int]] = deque()
        self.next = inf

    def push(self, i: int, now: float) -> None:
        """A request is there from now on."""
        self.queue.append((now, i))
        self.next = self.queue[0][0]

    def take(self, now: float) -> list[int]:
        """Requests that are there by now, in order."""
        taken = []
        while self.queue and self.queue[0][0] <= now:
            taken.append(self.queue.popleft()[1])
        self.next = self.queue[0][0] if self.queue else inf
        return taken

    def remove(self, i: int) -> None:
        """A request is aborted before the replica has seen it."""
        self.queue = deque(entry for entry in self.queue if entry[1] != i)
        self.next = self.queue[0][0] if self.queue else inf


class ClosedLoop:
    """At most ``max_concurrency`` requests and ``concurrent_sessions`` at once; a turn after all that it waits for.

    A request is ready at its time or when the last of those that it waits for has finished and its user (or its tool)
    has taken its time; it is sent when it is ready and a place is free. A session begins when another has ended.
    """

    def __init__(
        self,
        trace: Trace,
        arrival_s: array[float],
        max_concurrency: int | None,
        overhead: float = 0.0,
        rejected: Container[int] = (),
        tokenize_s: Sequence[float] = (),
        api_server_count: int = 1,
        concurrent_sessions: int | None = None,
    ) -> None:
        n = len(trace)
        self.arrival_s, self.overhead, self.rejected, self.tokenize_s = arrival_s, overhead, rejected, tokenize_s
        self.servers_free = [-inf] * api_server_count  # of each front end, when it has read the prompts it was sent
        times = np.zeros(n) if trace.arrival_s is None else np.nan_to_num(trace.arrival_s, nan=0.0)
        think = np.zeros(n) if trace.think_s is None else np.nan_to_num(trace.think_s, nan=0.0)
        self.times, self.think_s = array("d", times.tobytes()), array("d", think.tobytes())
        self.dependents = _Dependents(trace)
        first = self.dependents.without_any
        self.session_gate = None
        if concurrent_sessions is not None and trace.sessions is not None:
            self.session_gate = _SessionGate(trace.sessions.session, first, concurrent_sessions)
            first = self.session_gate.first
        self.ready = [(self.times[i], i) for i in first]
        heapify(self.ready)
        # when each free place became free, in order; None: there is no limit
        self.free_places = deque([-inf] * max_concurrency) if max_concurrency is not None else None
        self._update_next()

    def _update_next(self) -> None:
        """Work out when the next request is sent, and when the engine has it."""
        if not self.ready or (self.free_places is not None and not self.free_places):
            self.next_sent = self.next = inf
            return
        sent, i = self.ready[0]
        if self.free_places is not None and self.free_places[0] > sent:
            sent = self.free_places[0]
        self.next_sent = sent
        if self.tokenize_s:
            free_s = self.servers_free[0]
            sent = (sent if sent > free_s else free_s) + self.tokenize_s[i]
        self.next = sent + self.overhead

    def take(self, now: float) -> list[int]:
        """Requests that are there by now, in order; rejected ones finish as they arrive."""
        taken = []
        while self.next <= now:
            _, i = heappop(self.ready)
            if self.free_places is not None:
                self.free_places.popleft()
            heapreplace(self.servers_free, self.next - self.overhead)
            sent = self.arrival_s[i] = self.next_sent
            if i in self.rejected:
                self.finished(i, sent)
                continue
            taken.append(i)
            self._update_next()
        return taken

    def finished(self, i: int, now: float) -> float:
        """A request is over: its place is free, and the turn after it may come. Gives when its blocks are free: now."""
        if self.free_places is not None:
            self.free_places.append(now)
        for j in self.dependents.freed_by(i):
            heappush(self.ready, (max(self.times[j], now + self.think_s[j]), j))
        if self.session_gate is not None:
            for j in self.session_gate.begun_by(i):
                heappush(self.ready, (max(self.times[j], now), j))
        self._update_next()
        return now


class _Dependents:
    """Which requests wait for which: ``dependents.freed_by(7)`` are those that wait for no other any more."""

    def __init__(self, trace: Trace) -> None:
        n = len(trace)
        after = np.full(n, -1, np.int64) if trace.after is None else trace.after
        waiting = np.flatnonzero(after >= 0)
        pairs = np.column_stack([waiting, after[waiting]])
        if trace.sessions is not None and len(trace.sessions.joins):
            pairs = np.concatenate([pairs, trace.sessions.joins])
        pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
        self.start = array("q", np.searchsorted(pairs[:, 1], np.arange(n + 1)).astype(np.int64).tobytes())
        self.waiting = array("q", np.ascontiguousarray(pairs[:, 0]).tobytes())
        self.missing = array("q", np.bincount(pairs[:, 0], minlength=n).astype(np.int64).tobytes())
        self.without_any: list[int] = np.flatnonzero(np.frombuffer(self.missing, np.int64) == 0).tolist() if n else []

    def freed_by(self, i: int) -> list[int]:
        """The requests that waited for this one, and now for none."""
        freed = []
        for k in range(self.start[i], self.start[i + 1]):
            j = self.waiting[k]
            self.missing[j] -= 1
            if not self.missing[j]:
                freed.append(j)
        return freed


class _SessionGate:
    """So many sessions at once: ``gate.begun_by(7)`` are the first turns of the session that may begin after turn 7."""

    def __init__(self, session: np.ndarray, first: list[int], concurrent_sessions: int) -> None:
        self.session = array("q", session.astype(np.int64).tobytes())
        self.turns_left = np.bincount(session).tolist() if len(session) else []
        firsts: dict[int, list[int]] = {}
        for i in first:
            firsts.setdefault(self.session[i], []).append(i)
        self.queue = deque(firsts.values())
        begun = [self.queue.popleft() for _ in range(min(concurrent_sessions, len(self.queue)))]
        self.first = [i for turns in begun for i in turns]

    def begun_by(self, i: int) -> list[int]:
        """The first turns of the next session, if this was the last turn of its own."""
        number = self.session[i]
        self.turns_left[number] -= 1
        return self.queue.popleft() if not self.turns_left[number] and self.queue else []


def is_closed_loop(trace: Trace, max_concurrency: int | None, concurrent_sessions: int | None = None) -> bool:
    """Whether when a request is sent depends on when others finish."""
    return (
        max_concurrency is not None
        or concurrent_sessions is not None
        or trace.arrival_s is None
        or (trace.after is not None and bool((trace.after >= 0).any()))
    )


def by_arrival(trace: Trace) -> tuple[list[int], list[float]]:
    """Requests by time of arrival, those of one time as they stand in the file; unknown times count as 0."""
    assert trace.arrival_s is not None
    times = np.nan_to_num(trace.arrival_s, nan=0.0)
    order = np.argsort(times, kind="stable")
    return order.tolist(), times[order].tolist()
