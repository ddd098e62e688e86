"""Which replica a request goes to. A router is one function of a fleet and a request; it gives the replica's place."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nextafter

from .arrivals import RouterInbox
from .engine import EngineCore
from .kv_cache import PrefixTree

ROUTERS: dict[str, Callable[[Fleet, int], int]] = {}
UNEVEN, MANY = 1.5, 32  # a fleet is uneven when the fullest has so much more than the emptiest, and so many more


class Fleet:
    """Replicas that do the same work, and what a router remembers of them."""

    def __init__(
        self,
        replicas: list[EngineCore],
        inboxes: list[RouterInbox],
        speeds: list[float],
        router: str,
        paths: PrefixTree | None = None,
    ) -> None:
        self.replicas, self.inboxes, self.speeds = replicas, inboxes, speeds
        self.route, self.paths = ROUTERS[router], paths
        self.turn = 0
        self.where: dict[int, int] = {}  # request -> replica, until it ends
        self.sent: list[set[int]] = [set() for _ in replicas]  # runs of prompts that each has been sent
        self.live = [0] * len(replicas)  # requests that each has been sent and that have not ended
        self.horizons = [-inf] * len(replicas)  # -inf: to be asked again

    def send(self, i: int, now: float) -> None:
        """A request goes to one of the replicas."""
        place = self.route(self, i)
        self.inboxes[place].push(i, now)
        self.where[i] = place
        self.live[place] += 1
        self.horizons[place] = -inf
        if self.paths is not None:
            self.sent[place].update(self.paths.of(i))

    def ended(self, i: int) -> None:
        """A request is over here."""
        self.live[self.where.pop(i)] -= 1

    def load(self, place: int) -> float:
        """Requests that a replica has, for its speed."""
        return self.live[place] / self.speeds[place]

    def earliest(self) -> tuple[float, int]:
        """When something may end next, and where."""
        for place, known in enumerate(self.horizons):
            if known == -inf:
                self.horizons[place] = self.replicas[place].horizon()
        found = min(self.horizons)
        return found, self.horizons.index(found)

    def step(self, place: int, until: float) -> None:
        """Let a replica work until its next event, and begin no step after ``until`` but one."""
        replica = self.replicas[place]
        replica.run(max(until, nextafter(replica.now, inf)), once=True)
        self.horizons[place] = -inf


def router(function: Callable[[Fleet, int], int]) -> Callable[[Fleet, int], int]:
    """Register a router under its name: ``@router``"""
    ROUTERS[function.__name__] = function
    return function


@router
def round_robin(fleet: Fleet, i: int) -> int:
    """One after the other."""
    place = fleet.turn
    fleet.turn = (place + 1) % len(fleet.replicas)
    return place


@router
def least_loaded(fleet: Fleet, i: int) -> int:
    """The one with the fewest requests, waiting and running, for its speed; of equal ones each in turn."""
    count = len(fleet.replicas)
    place = min(range(count), key=lambda k: (fleet.load(k), (k - fleet.turn) % count))
    fleet.turn = (place + 1) % count
    return place


@router
def prefix_aware(fleet: Fleet, i: int) -> int:
    """The one that was sent the longest piece of this prompt before, unless the fleet has become uneven.

    As routers do it that know what they sent where, but not what the engines still have.
    """
    loads = [fleet.load(k) for k in range(len(fleet.replicas))]
    if fleet.paths is None or (max(loads) > UNEVEN * min(loads) and max(loads) - min(loads) > MANY):
        return least_loaded(fleet, i)
    known = []
    for sent in fleet.sent:
        length = 0
        for run in fleet.paths.of(i):
            if run not in sent:
                break
            length += 1
        known.append(length)
    best = max(known)
    if not best:
        return least_loaded(fleet, i)
    return min((k for k in range(len(loads)) if known[k] == best), key=lambda k: loads[k])
