"""The requests that wait for a place in an engine: first come first served, or by priority (vLLM's two policies).

queue = FCFSQueue()
queue.push(7)
queue.peek()        # 7
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Protocol

from .request_table import RequestTable


class RequestQueue(Protocol):
    """What an engine and its scheduler ask of the waiting requests."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...

    def push(self, i: int, /) -> None:
        """A request arrives."""

    def push_front(self, i: int, /) -> None:
        """A preempted request waits again."""

    def peek(self) -> int:
        """The request that is next."""
        raise NotImplementedError

    def pop_first(self) -> int:
        """The request that is next leaves the queue."""
        raise NotImplementedError


class FCFSQueue(deque[int]):
    """First come, first served; a preempted request goes to the front."""

    push, push_front, pop_first = deque.append, deque.appendleft, deque.popleft

    def peek(self) -> int:
        """The request that is next."""
        return self[0]


class PriorityQueue:
    """By priority (smaller first), then by arrival: ``PriorityQueue(table)``"""

    def __init__(self, table: RequestTable) -> None:
        self.table = table
        self.heap: list[tuple[int, float, int]] = []

    def __len__(self) -> int:
        return len(self.heap)

    def __iter__(self) -> Iterator[int]:
        return (entry[2] for entry in self.heap)

    def push(self, i: int) -> None:
        """A request arrives, or waits again after a preemption."""
        heappush(self.heap, (*priority_key(self.table, i), i))

    push_front = push

    def pop_first(self) -> int:
        """The request that is next leaves the queue."""
        return heappop(self.heap)[2]

    def peek(self) -> int:
        """The request that is next."""
        return self.heap[0][2]


def priority_key(table: RequestTable, i: int) -> tuple[int, float]:
    """Priority and arrival of a request: the smallest key is served first, the largest is preempted first."""
    return (table.priority[i] if table.priority else 0), table.arrival_s[i]
