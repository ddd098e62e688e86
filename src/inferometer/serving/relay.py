"""Disaggregated serving whose requests come at times of their own and are dealt out in turn: nobody waits for news.

A replica that reads prompts does not depend on those that answer, nor these on each other once it is known when each
cache arrives. So they run one after the other, each at its own pace, and the result is the cluster's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .arrivals import Open
from .routers import Fleet


def relay(feed: Open, readers: Fleet, writers: Fleet, handover: Sequence[float], short: Sequence[bool]) -> None:
    """Run all who read, then all who answer; ``handover`` and ``short`` as a `Cluster` has them."""
    arrivals: list[tuple[float, int]] = []
    count = len(readers.replicas)
    for place, i in enumerate(feed.ids):
        feed.arrival[i] = feed.times[place]
        readers.inboxes[place % count].push(i, feed.there[place])
    for replica in readers.replicas:
        replica.ends = _sender(arrivals, handover, short)
        replica.run()
    arrivals.sort()
    for number, replica in enumerate(writers.replicas):
        for now, i in arrivals[number :: len(writers.replicas)]:
            writers.inboxes[number].push(i, now)
        replica.run()


def _sender(arrivals: list[tuple[float, int]], handover: Sequence[float],
            short: Sequence[bool]) -> Callable[[int, float], float]:  # fmt: skip
    """What a replica does with a prompt that it has read: one cache after the other goes over its link."""
    free = 0.0

    def send(i: int, now: float) -> float:
        nonlocal free
        if short[i]:
            return now
        free = max(now, free) + handover[i]
        arrivals.append((free, i))
        return free

    return send
