"""A function of many items at once: on processes of this machine, or on a cluster of Dask or Ray.

parallel_map(square, [1, 2, 3], backend="processes")    # [1, 4, 9]
parallel_map(square, [1, 2, 3], backend="dask", address="tcp://scheduler:8786")

Workers change nothing but the time. What a dead worker had under way is done again by another; a cluster that cannot
be reached, or is gone, is one sentence (`WorkersLost`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from .errors import BadValue, DeadlyTask, UnknownName, WorkersLost, check_int
from .extras import require_library

BACKENDS = ("processes", "dask", "ray")
ADDRESS_VARIABLE = "INFEROMETER_BACKEND_ADDRESS"
_LIBRARIES = {"dask": "distributed", "ray": "ray"}
Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """What runs calls: `ProcessWorkers`, `DaskWorkers`, `RayWorkers`."""

    slots: int  # calls that run at once

    def carry(self, files: Mapping[str, Path]) -> None:
        """Files that calls will open, by the names that they have here."""

    def start(self, function: Callable[[Any], Any], item: Any) -> Any:
        """Begin a call; gives its handle."""

    def finished(self, handles: list[Any]) -> list[Any]:
        """Wait until some of the calls are over: their handles."""

    def result(self, handle: Any) -> Any:
        """What a call gave, or the error that it raised."""

    def close(self) -> None:
        """End all workers that were begun for these calls."""


class TaskPool:
    """Workers that stay until the end: ``pool.run(square, [1, 2, 3])  # [1, 4, 9]``"""

    def __init__(self, workers: Workers) -> None:
        self.workers, self.slots = workers, workers.slots
        self.carry = workers.carry
        self.lost = ""  # how the workers went away, as a sentence

    def completed(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Number of an item and its result, as they come; as many are under way as there are slots.

        ``dict(pool.completed(square, [1, 2, 3]))  # {0: 1, 2: 9, 1: 4}``
        """
        waiting, under_way = enumerate(items), dict[Any, int]()
        while True:
            while len(under_way) < self.slots and (pair := next(waiting, None)) is not None:
                under_way[self.workers.start(function, pair[1])] = pair[0]
            if not under_way:
                return
            for handle in self.workers.finished(list(under_way)):
                yield under_way.pop(handle), self.workers.result(handle)

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Results in the order of the items. Where a cluster goes away, the rest runs here; ``lost`` then says so."""
        results: dict[int, Any] = {}
        if not self.lost:
            try:
                results.update(self.completed(function, items))
            except DeadlyTask:
                raise
            except WorkersLost as error:
                self.lost = f"{error.sentence}; the rest ran on this machine"
        return [results[n] if n in results else function(item) for n, item in enumerate(items)]


def check_backend(backend: str, jobs: int | None = None, address: str | None = None) -> str | None:
    """Refuse workers that cannot be had; gives the address of the cluster, if there is one.

    ``check_backend("dask", None, "tcp://scheduler:8786")  # 'tcp://scheduler:8786'``
    """
    if backend not in BACKENDS:
        raise UnknownName("`backend`", backend, BACKENDS, field="backend")
    if jobs is not None:
        check_int("jobs", jobs, most=10**5)
    if backend == "processes":
        if address is not None:
            raise BadValue("`backend_address` needs `backend` dask or ray")
        return None
    require_library(f"`backend` {backend}", _LIBRARIES[backend])
    return address or os.environ.get(ADDRESS_VARIABLE) or None


@contextmanager
def worker_pool(backend: str, jobs: int | None = None, address: str | None = None) -> Iterator[TaskPool]:
    """Workers that stay until the end: ``with worker_pool("processes") as pool: pool.run(square, [1, 2, 3])``

    ``jobs`` calls run at once; by default one per core here, or as many as a cluster has slots.
    """
    address = check_backend(backend, jobs, address)
    workers: Workers
    if backend == "processes":
        from .process_workers import ProcessWorkers

        workers = ProcessWorkers(jobs or os.cpu_count() or 1)
    else:
        from . import cluster_workers

        workers = cluster_workers.connect(backend, jobs, address)
    try:
        yield TaskPool(workers)
    finally:
        workers.close()


def parallel_map(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    backend: str = "processes",
    jobs: int | None = None,
    address: str | None = None,
) -> list[Result]:
    """A function of every item, on all workers; results in the order of the items."""
    if backend == "processes" and jobs == 1:
        return [function(item) for item in items]
    with worker_pool(backend, jobs, address) as pool:
        return pool.run(function, items)
