"""Disaggregated serving whose requests come at times of their own and are dealt out in turn: nobody waits for news.

A replica that reads prompts does not depend on those that answer, nor these on each other once it is known when each
cache arrives. So they run one after the other, each at its own pace, and the result is the cluster's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf, nextafter

from .arrivals import ClosedLoop, OpenLoop
from .router import Fleet


def run_disaggregated(
    feed: OpenLoop, readers: Fleet, writers: Fleet, handover: Sequence[float], short: Sequence[bool]
) -> None:
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


def _sender(
    arrivals: list[tuple[float, int]], handover: Sequence[float], short: Sequence[bool]
) -> Callable[[int, float], float]:
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


# ------------------------------------------------------------------ cluster
# Several replicas: requests are routed, and in disaggregated serving handed from those that read prompts to those that
# answer. What happens where depends on what happened elsewhere, so the cluster always takes the earliest next event.


OVER, READ, THERE = range(3)  # a request has ended; its prompt is read; its cache has arrived


class Cluster:
    """``Cluster(feed, [fleet]).run()``; or, disaggregated, ``Cluster(feed, [readers, writers], handover)``.

    ``handover`` are the seconds that the cache of each request's prompt is on its way; a replica sends one at a time.
    Requests that are ``short`` are over with their prompt.
    """

    def __init__(
        self,
        feed: OpenLoop | ClosedLoop,
        fleets: list[Fleet],
        handover: Sequence[float] = (),
        short: Sequence[bool] = (),
    ) -> None:
        self.feed, self.fleets, self.handover, self.short = feed, fleets, handover, short
        self.events: list[tuple[float, int, int]] = []  # time, what (`OVER`, `READ` or `THERE`), request
        self.sending: dict[int, float] = {}  # replica -> when its link is free
        for fleet in fleets:
            for replica in fleet.replicas:
                replica.ends = self._handed if fleet is fleets[0] and len(fleets) > 1 else self._over

    def run(self) -> None:
        """Until everything has ended."""
        while True:
            asked = [fleet.earliest() for fleet in self.fleets]
            work = min(asked)[0]
            event = self.events[0][0] if self.events else inf
            if min(work, event, self.feed.next) == inf:
                return
            if event <= work and event <= self.feed.next:
                self._happen()
            elif self.feed.next <= work:
                now = self.feed.next
                for i in self.feed.take(now):
                    self.fleets[0].send(i, now)
            else:
                which = asked.index(min(asked))
                fleet, place = self.fleets[which], asked[which][1]
                fleet.horizons[place] = inf  # what the others may do first
                alone = len(self.fleets) == 1 and isinstance(self.feed, OpenLoop)
                others = inf if alone else min(min(each.horizons) for each in self.fleets)
                until = min(event, self.feed.next, others)
                fleet.step(place, max(until, nextafter(work, inf)))  # of several that wake at once, one must begin

    def _happen(self) -> None:
        now, what, i = heappop(self.events)
        if what == THERE:
            self.fleets[1].send(i, now)
            return
        self.fleets[0 if what == READ or i in self.fleets[0].where else 1].ended(i)
        if what == OVER and isinstance(self.feed, ClosedLoop):
            self.feed.ended(i, now)

    def _over(self, i: int, now: float) -> float:
        heappush(self.events, (now, OVER, i))
        return now

    def _handed(self, i: int, now: float) -> float:
        """A prompt is read: its cache goes to whoever writes the answer; its blocks stay until it is there."""
        if self.short[i]:
            return self._over(i, now)
        sender = self.fleets[0].where[i]
        there = max(now, self.sending.get(sender, 0.0)) + self.handover[i]
        self.sending[sender] = there
        heappush(self.events, (now, READ, i))
        heappush(self.events, (there, THERE, i))
        return there
