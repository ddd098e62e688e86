"""Processes that answer for the server: it stays responsive whatever they do, and can end what takes too long.

pool = WorkerPool(2)
await pool.ask("analyze", b'{"gpu": "h200"}')       # JsonAnswer(status=200, …)
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .answers import JsonAnswer, ProgressCallback, no_progress, refusal
from .endpoints import answer
from .uploads import Uploads

MEMORY = 4 * 2**30  # bytes that a worker may take beyond what it has at the start
PROGRESS_INTERVAL = 0.05  # s between two reports of progress
PATIENCE = 60.0  # s that a question waits for a free worker
DIED_TWICE = (
    "the process that computed this ended early, and so did a second one: it may need more memory than this machine has"
)
_PRELOADED = ["inferometer.serving.capacity", "inferometer.sweep.sweep", "inferometer.web.endpoints"]


class WorkerDied(Exception):
    """The worker was ended, or ended itself, before it had answered; perhaps before it had ``begun``."""

    def __init__(self, begun: bool = True) -> None:
        super().__init__()
        self.begun = begun


class Worker:
    """One process: ``Worker().ask("analyze", body, 10.0)``; `end` from another thread makes that raise `WorkerDied`."""

    def __init__(self, uploads: Uploads | None = None) -> None:
        context = _context()
        self.uploads = uploads
        self.folder = uploads.folder() if uploads else None
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.folder), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, verb: str, body: bytes, seconds: float, progress: ProgressCallback = no_progress) -> JsonAnswer:
        """Wait for the answer; where it does not come in time, the process is ended and that is the answer."""
        deadline, begun = time.monotonic() + seconds, False
        try:
            self.pipe.send((verb, body))
            while self.pipe.poll(max(0.0, deadline - time.monotonic())):
                kind, *values = self.pipe.recv()
                if kind == "answer":
                    return JsonAnswer(*values)
                if kind == "begun":
                    begun = True
                else:
                    progress(*values)
        except (EOFError, OSError):
            self.end()
            raise WorkerDied(begun) from None
        self.end()
        return refusal(
            422,
            (
                f"this takes longer than the {seconds:g} s that the web page waits: "
                "reduce the request, or use the command line"
            ),
        )

    def end(self) -> None:
        """End it, whatever it does, and remove the files that it had been given."""
        self.process.kill()
        self.process.join()
        if self.uploads is not None and self.folder is not None:
            self.uploads.remove(self.folder)

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


def _serve(pipe: Any, folder: Path | None) -> None:
    """The loop of a worker: requests in, answers out, until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # these are for the server, which ends its workers itself
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    _limit_memory()
    with contextlib.suppress(EOFError, OSError):
        while True:
            verb, body = pipe.recv()
            pipe.send(("begun",))
            last = 0.0

            def progress(share: float | None, text: str) -> None:
                nonlocal last
                if time.monotonic() - last > PROGRESS_INTERVAL:
                    last = time.monotonic()
                    pipe.send(("progress", share, text))

            pipe.send(("answer", *answer(verb, body, progress, folder)))


def _end_with_the_server() -> None:
    """End this process when the server's is gone, also in the middle of an answer."""
    server = multiprocessing.parent_process()
    if server is not None:
        multiprocessing.connection.wait([server.sentinel])
        os._exit(1)


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

    def __init__(self, number: int, uploads: Uploads | None = None, max_waiting: int = 1000) -> None:
        self.number, self.uploads, self.max_waiting = number, uploads, max_waiting
        self.threads = ThreadPoolExecutor(number, "worker")
        self.free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self.workers: list[Worker] = []
        self.pending = self.busy = self.replaced = 0
        self.ready = self.stopped = False

    def start(self) -> None:
        """Begin the processes, and wait for none of them: the page can be had before its first answer."""
        for _ in range(self.number):
            self.threads.submit(self._begin)

    def _begin(self) -> None:
        """A first request to a worker lets it import what every answer needs."""
        self._start_worker()
        self.ready = self._ask("analyze", b"{}", 20.0).status == 200 or self.ready

    @property
    def queued(self) -> int:
        """Questions that wait for a worker."""
        return max(0, self.pending - self.number)

    async def ask(self, verb: str, body: bytes, seconds: float = 20.0) -> JsonAnswer:
        """The answer to a short request."""
        if self.pending >= self.max_waiting:
            return refusal(429, f"{self.max_waiting:,} requests are already waiting: try again in a moment")
        if self.stopped:
            return refusal(503, "the server is shutting down")
        self.pending += 1
        latest = time.monotonic() + PATIENCE
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.threads, self._ask, verb, body, seconds, latest)
        finally:
            self.pending -= 1

    def _ask(self, verb: str, body: bytes, seconds: float, latest: float = float("inf")) -> JsonAnswer:
        """Ask a worker, and another one if it died over it; those that the system had ended before do not count."""
        if time.monotonic() > latest:
            return refusal(503, f"the server was too busy to answer within {PATIENCE:g} s: try again in a moment")
        deaths = 0
        for _ in range(self.number + 2):
            try:
                return self._ask_once(verb, body, seconds)
            except WorkerDied as death:
                deaths += death.begun
                if self.stopped:
                    return refusal(503, "the server is shutting down")
                if deaths == 2:
                    break
        return refusal(422, DIED_TWICE)

    def _ask_once(self, verb: str, body: bytes, seconds: float) -> JsonAnswer:
        worker = self._free_worker()
        self.busy += 1
        try:
            return worker.ask(verb, body, seconds)
        finally:
            self.busy -= 1
            if worker.alive:
                self.free.put(worker)
            elif not self.stopped:
                self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        worker.end()
        self.workers.remove(worker)
        self.replaced += 1
        self._start_worker()

    def _free_worker(self) -> Worker:
        while not self.stopped:
            with contextlib.suppress(queue.Empty):
                return self.free.get(timeout=0.5)
        raise WorkerDied(begun=False)

    def _start_worker(self) -> None:
        """Begin another one, as soon as the system lets us."""
        while not self.stopped:
            try:
                worker = Worker(self.uploads)
            except OSError:
                time.sleep(0.5)
                continue
            self.workers.append(worker)
            self.free.put(worker)
            if self.stopped:
                worker.end()
            return

    def stop(self) -> None:
        """End all of them, also those that are at work."""
        self.stopped = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in list(self.workers):
            worker.end()
