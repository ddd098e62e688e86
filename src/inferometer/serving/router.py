"""Several replicas: a router deals requests out, and in disaggregated serving the KV cache goes from replicas that
prefill to replicas that decode.

    @router
    def first_replica(fleet: Fleet, i: int) -> int:
        return 0

A router is one registered function of a fleet and a request; it gives the replica's index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf, nextafter

from .arrivals import ClosedLoop, OpenLoop, RouterInbox
from .engine import EngineCore
from .kv_cache import PrefixTree
from .lockstep import LockstepServer
from .sessions import Sessions

ROUTERS: dict[str, Callable[[Fleet, int], int]] = {}
IMBALANCE_RATIO, IMBALANCE_REQUESTS = 1.5, 32  # a fleet is out of balance beyond both, between its replicas


class Fleet:
    """Replicas that do the same work, and what a router remembers of them.

    Each replica is a server of its own; data-parallel ranks that step together are replicas of one `LockstepServer`.
    """

    def __init__(
        self,
        servers: Sequence[EngineCore | LockstepServer],
        inboxes: list[RouterInbox],
        speeds: list[float],
        router: str,
        tree: PrefixTree | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self.servers, self.inboxes, self.speeds = servers, inboxes, speeds
        self.replicas: list[EngineCore] = []
        self.server_of: list[int] = []  # by replica
        for number, server in enumerate(servers):
            ranks = server.ranks if isinstance(server, LockstepServer) else [server]
            self.replicas += ranks
            self.server_of += [number] * len(ranks)
        replicas = self.replicas
        self.route, self.tree, self.sessions = ROUTERS[router], tree, sessions
        self.replica_of_session: dict[int, int] = {}
        self.sessions_sent = [0] * len(replicas)  # to each
        self.turn = 0
        self.replica_of: dict[int, int] = {}  # request -> replica, until it finishes
        self.sent_segments: list[set[int]] = [set() for _ in replicas]  # of prompts that each has been sent
        self.num_unfinished = [0] * len(replicas)  # requests that each has been sent
        self.earliest_finishes = [-inf] * len(servers)
        self.to_be_asked = set(range(len(servers)))  # servers whose earliest finish has changed

    def send(self, i: int, now: float) -> None:
        """A request goes to one of the replicas."""
        index = self.route(self, i)
        self.inboxes[index].push(i, now)
        self.replica_of[i] = index
        self.num_unfinished[index] += 1
        self.to_be_asked.add(self.server_of[index])
        if self.tree is not None:
            self.sent_segments[index].update(self.tree.of(i))

    def finished(self, i: int) -> None:
        """A request is over here."""
        self.num_unfinished[self.replica_of.pop(i)] -= 1

    def load(self, index: int) -> float:
        """Unfinished requests of a replica, relative to its speed."""
        return self.num_unfinished[index] / self.speeds[index]

    def earliest_finish(self) -> tuple[float, int]:
        """When a request may finish next, and on which server."""
        while self.to_be_asked:
            index = self.to_be_asked.pop()
            self.earliest_finishes[index] = self.servers[index].earliest_finish()
        earliest = min(self.earliest_finishes)
        return earliest, self.earliest_finishes.index(earliest)

    def step(self, index: int, until: float) -> None:
        """Let a server work until its next event, and begin no step after ``until`` but one."""
        server = self.servers[index]
        server.run(max(until, nextafter(server.now, inf)), once=True)
        self.to_be_asked.add(index)


# ------------------------------------------------------------------ routers


def router(function: Callable[[Fleet, int], int]) -> Callable[[Fleet, int], int]:
    """Register a router under its name: ``@router``; a second one of that name is an error."""
    if function.__name__ in ROUTERS:
        raise ValueError(f"a router named {function.__name__!r} is registered already")
    ROUTERS[function.__name__] = function
    return function


@router
def round_robin(fleet: Fleet, i: int) -> int:
    """One replica after the other."""
    index = fleet.turn
    fleet.turn = (index + 1) % len(fleet.replicas)
    return index


@router
def least_loaded(fleet: Fleet, i: int) -> int:
    """The replica with the fewest requests, waiting and running, for its speed; of equal ones each in turn."""
    count = len(fleet.replicas)
    index = min(range(count), key=lambda k: (fleet.load(k), (k - fleet.turn) % count))
    fleet.turn = (index + 1) % count
    return index


@router
def prefix_aware(fleet: Fleet, i: int) -> int:
    """The replica that was sent the longest part of this prompt before, unless the fleet is out of balance.

    As routers do it that know what they sent where, but not what the engines still have.
    """
    loads = [fleet.load(k) for k in range(len(fleet.replicas))]
    spread = max(loads) - min(loads)
    if fleet.tree is None or (max(loads) > IMBALANCE_RATIO * min(loads) and spread > IMBALANCE_REQUESTS):
        return least_loaded(fleet, i)
    matches = [_matching_segments(fleet.tree.of(i), sent) for sent in fleet.sent_segments]
    best = max(matches)
    if not best:
        return least_loaded(fleet, i)
    return min((k for k in range(len(loads)) if matches[k] == best), key=lambda k: loads[k])


@router
def session_affinity(fleet: Fleet, i: int) -> int:
    """The replica that has the request's session, with its sub-agents; a new one goes where the fewest went.

    As routers do it that are given a session's id, and as a trace with one tells it; other requests go one by one.
    """
    if fleet.sessions is None:
        return least_loaded(fleet, i)
    session = int(fleet.sessions.session[i])
    index = fleet.replica_of_session.get(session)
    if index is None:
        count = range(len(fleet.replicas))
        index = min(count, key=lambda k: fleet.sessions_sent[k] / fleet.speeds[k])
        fleet.replica_of_session[session] = index
        fleet.sessions_sent[index] += 1
    return index


def _matching_segments(path: tuple[int, ...], sent: set[int]) -> int:
    """Leading segments of a prompt that a replica was sent before."""
    length = 0
    for segment in path:
        if segment not in sent:
            break
        length += 1
    return length


# ------------------------------------------------------------------ events between replicas

FINISHED, PREFILL_DONE, KV_ARRIVED = range(3)  # events: a request has finished; its prompt is done; its cache is there


class Cluster:
    """``Cluster(source, [fleet]).run()``; or, disaggregated, ``Cluster(source, [prefill, decode], transfer_s).run()``

    What happens on one replica depends on what happened on others, so a cluster always takes the earliest next event.
    ``kv_transfer_s`` are the seconds that the KV cache of each request's prompt takes from a prefill to a decode
    replica; a replica sends one at a time. Requests with ``ends_at_prefill`` have all their tokens with their prompt.
    """

    def __init__(
        self,
        source: OpenLoop | ClosedLoop,
        fleets: list[Fleet],
        kv_transfer_s: Sequence[float] = (),
        ends_at_prefill: Sequence[bool] = (),
    ) -> None:
        self.source, self.fleets = source, fleets
        self.kv_transfer_s, self.ends_at_prefill = kv_transfer_s, ends_at_prefill
        self.events: list[tuple[float, int, int]] = []  # heap: time, kind (`FINISHED` …), request
        self.link_free: dict[int, float] = {}  # prefill replica -> when its link is free
        for fleet in fleets:
            prefills = fleet is fleets[0] and len(fleets) > 1
            for replica in fleet.replicas:
                replica.on_finished = self._on_prefill_done if prefills else self._on_finished

    def run(self) -> None:
        """Until everything has finished."""
        while True:
            earliest = [fleet.earliest_finish() for fleet in self.fleets]
            finish = min(earliest)[0]
            event = self.events[0][0] if self.events else inf
            if min(finish, event, self.source.next) == inf:
                return
            if event <= finish and event <= self.source.next:
                self._handle_event()
            elif self.source.next <= finish:
                now = self.source.next
                for i in self.source.take(now):
                    self.fleets[0].send(i, now)
            else:
                self._step(earliest, event)

    def _step(self, earliest: list[tuple[float, int]], event: float) -> None:
        """Let the server work that may finish a request first, until others may have something to say."""
        which = earliest.index(min(earliest))
        fleet, (finish, index) = self.fleets[which], earliest[which]
        fleet.earliest_finishes[index] = inf  # what the others may do first
        independent = len(self.fleets) == 1 and isinstance(self.source, OpenLoop)
        others = inf if independent else min(min(each.earliest_finishes) for each in self.fleets)
        until = min(event, self.source.next, others)
        fleet.step(index, max(until, nextafter(finish, inf)))  # of several that wake at once, one must begin

    def _handle_event(self) -> None:
        now, kind, i = heappop(self.events)
        if kind == KV_ARRIVED:
            self.fleets[1].send(i, now)
            return
        self.fleets[0 if kind == PREFILL_DONE or i in self.fleets[0].replica_of else 1].finished(i)
        if kind == FINISHED and isinstance(self.source, ClosedLoop):
            self.source.finished(i, now)

    def _on_finished(self, i: int, now: float) -> float:
        heappush(self.events, (now, FINISHED, i))
        return now

    def _on_prefill_done(self, i: int, now: float) -> float:
        """A prompt is done: its cache goes to a decode replica, and its blocks stay until it is there."""
        if self.ends_at_prefill[i]:
            return self._on_finished(i, now)
        sender = self.fleets[0].replica_of[i]
        now += _result_delay(self.fleets[0].replicas[sender])
        arrives = max(now, self.link_free.get(sender, 0.0)) + self.kv_transfer_s[i]
        self.link_free[sender] = arrives
        heappush(self.events, (now, PREFILL_DONE, i))
        heappush(self.events, (arrives, KV_ARRIVED, i))
        return arrives


def _result_delay(replica: EngineCore) -> float:
    """Seconds until the results of a replica's last step are seen: where requests wait, its next is launched first."""
    waits = replica.waiting or replica.prefilling or replica.source.next <= replica.now
    return replica.limits.launch_s if waits else 0.0


def run_disaggregated(
    source: OpenLoop,
    prefill_fleet: Fleet,
    decode_fleet: Fleet,
    kv_transfer_s: Sequence[float],
    ends_at_prefill: Sequence[bool],
) -> None:
    """Disaggregated serving of requests that come at times of their own and are dealt out in turn.

    A prefill replica does not depend on the decode replicas, nor these on each other once it is known when each cache
    arrives. So they run one after the other, each at its own pace, and the result is that of a `Cluster`.
    """
    arrivals: list[tuple[float, int]] = []
    count = len(prefill_fleet.replicas)
    for index, i in enumerate(source.ids):
        source.arrival_s[i] = source.times[index]
        prefill_fleet.inboxes[index % count].push(i, source.ready[index])
    for replica in prefill_fleet.replicas:
        replica.on_finished = _kv_sender(arrivals, kv_transfer_s, ends_at_prefill, replica)
        replica.sends_caches = True
    for server in prefill_fleet.servers:
        server.run()
    arrivals.sort()
    for replica in decode_fleet.replicas:
        replica.on_finished = lambda i, now: now  # the caller is notified, as in a cluster
    for number, inbox in enumerate(decode_fleet.inboxes):
        for now, i in arrivals[number :: len(decode_fleet.inboxes)]:
            inbox.push(i, now)
    for server in decode_fleet.servers:
        server.run()


def _kv_sender(
    arrivals: list[tuple[float, int]],
    kv_transfer_s: Sequence[float],
    ends_at_prefill: Sequence[bool],
    replica: EngineCore,
) -> Callable[[int, float], float]:
    """What a prefill replica does with a finished prompt: one cache after the other goes over its link."""
    link_free = 0.0

    def send(i: int, now: float) -> float:
        nonlocal link_free
        if ends_at_prefill[i]:
            return now
        link_free = max(now + _result_delay(replica), link_free) + kv_transfer_s[i]
        arrivals.append((link_free, i))
        return link_free

    return send
