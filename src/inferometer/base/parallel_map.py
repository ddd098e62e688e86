"""A function of many items at once: on processes of this machine, or on a cluster of Dask or Ray.

parallel_map(square, [1, 2, 3], backend="processes")    # [1, 4, 9]
parallel_map(square, [1, 2, 3], backend="dask", address="tcp://scheduler:8786")
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from .errors import BadValue, UnknownName, check_int

BACKENDS = ("processes", "dask", "ray")
_NEEDS = {"processes": ("joblib",), "dask": ("joblib", "distributed"), "ray": ("joblib", "ray")}
Item = TypeVar("Item")
Result = TypeVar("Result")


def worker_count(backend: str, jobs: int | None) -> int:
    """How many calls run at once: ``jobs``, or one per core; checks that the backend is installed."""
    if backend not in BACKENDS:
        raise UnknownName("`backend`", backend, BACKENDS, field="backend")
    count = check_int("jobs", jobs, most=10**5) if jobs is not None else os.cpu_count() or 1
    missing = [name for name in _NEEDS[backend] if importlib.util.find_spec(name) is None]
    if missing and (backend != "processes" or count > 1):
        extra = "dask[distributed]" if "distributed" in missing else missing[0]
        raise BadValue(f"`backend` {backend} needs the package {extra}, which is not installed")
    return count


@contextmanager
def worker_pool(
    backend: str, jobs: int | None = None, address: str | None = None
) -> Iterator[Callable[..., list[Any]]]:
    """Workers that stay until the end: ``with worker_pool("processes") as run: run(square, [1, 2, 3])``"""
    count = worker_count(backend, jobs)
    if backend == "processes" and count == 1:
        yield lambda function, items: [function(item) for item in items]
        return
    joblib: Any = importlib.import_module("joblib")

    def run(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return list(
            joblib.Parallel(n_jobs=count)(joblib.delayed(_without_interrupts)(function, item) for item in items)
        )

    if backend == "dask":
        client_of: Any = importlib.import_module("distributed").Client
        where: dict[str, Any] = {"address": address} if address else {"n_workers": count, "threads_per_worker": 1}
        with client_of(**where, set_as_default=True) as client, joblib.parallel_config(backend="dask", client=client):
            yield run
    elif backend == "ray":
        importlib.import_module("ray.util.joblib").register_ray()
        importlib.import_module("ray").init(address=address, ignore_reinit_error=True)
        with joblib.parallel_config(backend="ray"):
            yield run
    else:
        with joblib.parallel_config(backend="loky", n_jobs=count):
            yield run


def _without_interrupts(function: Callable[[Any], Any], item: Any) -> Any:
    """One call in a worker. Ctrl-C reaches every process of a terminal; the parent alone ends the run."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return function(item)


def parallel_map(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    backend: str = "processes",
    jobs: int | None = None,
    address: str | None = None,
) -> list[Result]:
    """A function of every item, on all workers; results in the order of the items."""
    with worker_pool(backend, jobs, address) as run:
        return run(function, items)
