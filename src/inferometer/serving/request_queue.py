"""Who waits for a place in an engine: first come first, or by priority."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from .request_table import RequestTable


class FCFSQueue(deque[int]):
    """Who waits, first come first; whoever is preempted goes to the front."""

    push, push_front, pop_first = deque.append, deque.appendleft, deque.popleft

    def peek(self) -> int:
        """The first in line."""
        return self[0]


class PriorityQueue:
    """Who waits, by priority (smaller first), then by arrival."""

    def __init__(self, ledger: RequestTable) -> None:
        self.ledger = ledger
        self.heap: list[tuple[int, float, int]] = []

    def __len__(self) -> int:
        return len(self.heap)

    def __iter__(self) -> Iterator[int]:
        return (entry[2] for entry in self.heap)

    def push(self, i: int) -> None:
        """Someone comes, or comes back."""
        heappush(self.heap, (*priority_key(self.ledger, i), i))

    push_front = push

    def pop_first(self) -> int:
        """The first leaves the line."""
        return heappop(self.heap)[2]

    def peek(self) -> int:
        """The first in line."""
        return self.heap[0][2]


def priority_key(ledger: RequestTable, i: int) -> tuple[int, float]:
    """Priority and arrival of a request: the smallest goes first, the largest is preempted first."""
    return (ledger.priority[i] if ledger.priority else 0), ledger.arrival[i]
