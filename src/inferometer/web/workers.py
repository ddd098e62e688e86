"""Processes that answer for the server: it stays responsive whatever they do, and can end what takes too long.

pool = WorkerPool(2)
await pool.ask("analyze", b'{"gpu": "h200"}')       # JsonAnswer(status=200, …)
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .answers import JsonAnswer, ProgressCallback, no_progress, refusal
from .endpoints import answer

MEMORY = 4 * 2**30  # bytes that a worker may take beyond what it has at the start
PROGRESS_INTERVAL = 0.05  # s between two reports of progress
_PRELOADED = ["inferometer.serving.capacity", "inferometer.sweep.sweep", "inferometer.web.endpoints"]


class WorkerDied(Exception):
    """The worker was ended, or ended itself, before it had answered."""


class Worker:
    """One process: ``Worker().ask("analyze", body, 10.0)``; `end` from another thread makes that raise `WorkerDied`."""

    def __init__(self) -> None:
        context = _context()
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, verb: str, body: bytes, seconds: float, progress: ProgressCallback = no_progress) -> JsonAnswer:
        """Wait for the answer; where it does not come in time, the process is ended and that is the answer."""
        deadline = time.monotonic() + seconds
        try:
            self.pipe.send((verb, body))
            while self.pipe.poll(max(0.0, deadline - time.monotonic())):
                kind, *values = self.pipe.recv()
                if kind == "answer":
                    return JsonAnswer(*values)
                progress(*values)
        except (EOFError, OSError):
            self.end()
            raise WorkerDied from None
        self.end()
        return refusal(
            422, f"this takes longer than the {seconds:g} s that a page waits: ask for less, or use the command line"
        )

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.join()

    @property
    def alive(self) -> bool:
        """Whether it can take a request."""
        return bool(self.process.is_alive())


def _context() -> Any:
    """Processes begin from one that has read the package already, where the system has such."""
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(_PRELOADED)
    return context


def _serve(pipe: Any) -> None:
    """The loop of a worker: requests in, answers out, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its workers itself
    _limit_memory()
    with contextlib.suppress(EOFError, OSError):
        while True:
            verb, body = pipe.recv()
            last = 0.0

            def progress(share: float | None, text: str) -> None:
                nonlocal last
                if time.monotonic() - last > PROGRESS_INTERVAL:
                    last = time.monotonic()
                    pipe.send(("progress", share, text))

            pipe.send(("answer", *answer(verb, body, progress)))


def _limit_memory() -> None:
    """Let a request that wants too much fail, rather than the machine."""
    if not sys.platform.startswith("linux"):
        return
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))


class WorkerPool:
    """So many workers for short requests; one that comes while all are busy waits for the next that is free."""

    def __init__(self, number: int, max_waiting: int = 1000) -> None:
        self.number, self.max_waiting = number, max_waiting
        self.threads = ThreadPoolExecutor(number, "worker")
        self.free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self.workers: list[Worker] = []
        self.pending, self.stopped = 0, False

    def start(self) -> None:
        """Begin the processes; a first request to each lets it import what every answer needs."""
        for _ in range(self.number):
            self._start_worker()
            self.threads.submit(self._ask, "analyze", b"{}", 20.0)

    async def ask(self, verb: str, body: bytes, seconds: float = 20.0) -> JsonAnswer:
        """The answer to a short request."""
        if self.pending >= self.max_waiting:
            return refusal(429, f"{self.max_waiting:,} questions are waiting already: ask again in a moment")
        self.pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, self._ask, verb, body, seconds)
        finally:
            self.pending -= 1

    def _ask(self, verb: str, body: bytes, seconds: float) -> JsonAnswer:
        worker = self.free.get()
        try:
            return worker.ask(verb, body, seconds)
        except WorkerDied:
            return refusal(422, "this took more than a page may ask for, and was ended")
        finally:
            if worker.alive:
                self.free.put(worker)
            elif not self.stopped:
                self.workers.remove(worker)
                self._start_worker()

    def _start_worker(self) -> None:
        self.workers.append(Worker())
        self.free.put(self.workers[-1])

    def stop(self) -> None:
        """End all of them, also those that are at work."""
        self.stopped = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in list(self.workers):
            worker.end()
