"""Processes that answer for the server, so that it stays at hand whatever they do, and can end what takes too long.

crew = Crew(2)
await crew.ask("analyze", b'{"gpu": "h200"}')       # Answer(status=200, …)
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

from .verbs import Answer, Tell, answer, wrong

MEMORY = 4 * 2**30  # bytes that a worker may take beyond what it has at the start
APART = 0.05  # s between two words about how far it is
_FIRST = ["inferometer.serving.summary", "inferometer.sweep.sweep", "inferometer.web.verbs"]


class Gone(Exception):
    """The worker was ended, or ended itself, before it had answered."""


class Worker:
    """One process: ``Worker().ask("analyze", body, 10.0)``; whoever ends it makes the question raise `Gone`."""

    def __init__(self) -> None:
        context = _context()
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, verb: str, body: bytes, seconds: float, tell: Tell = lambda share, words: None) -> Answer:
        """Wait for the answer; where it does not come in time, the process is ended and that is the answer."""
        deadline = time.monotonic() + seconds
        try:
            self.pipe.send((verb, body))
            while self.pipe.poll(max(0.0, deadline - time.monotonic())):
                kind, *found = self.pipe.recv()
                if kind == "answer":
                    return Answer(*found)
                tell(*found)
        except (EOFError, OSError):
            self.end()
            raise Gone from None
        self.end()
        return wrong(
            422, f"this takes longer than the {seconds:g} s that a page waits: ask for less, or use the command line"
        )

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.join()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return bool(self.process.is_alive())


def _context() -> Any:
    """Processes begin from one that has read the package already, where the system has such."""
    known = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    if "forkserver" in known:
        context.set_forkserver_preload(_FIRST)
    return context


def _serve(pipe: Any) -> None:
    """A worker's life: questions in, answers out, until nobody is there any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its workers itself
    _limit_memory()
    with contextlib.suppress(EOFError, OSError):
        while True:
            verb, body = pipe.recv()
            last = 0.0

            def tell(share: float | None, words: str) -> None:
                nonlocal last
                if time.monotonic() - last > APART:
                    last = time.monotonic()
                    pipe.send(("told", share, words))

            pipe.send(("answer", *answer(verb, body, tell)))


def _limit_memory() -> None:
    """Let a request that wants too much fail, rather than the machine."""
    if not sys.platform.startswith("linux"):
        return
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))


class Crew:
    """So many workers for short questions; who comes while all are busy waits for the next that is free."""

    def __init__(self, number: int, waiting: int = 1000) -> None:
        self.number, self.most = number, waiting
        self.threads = ThreadPoolExecutor(number, "crew")
        self.free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self.all: list[Worker] = []
        self.asked, self.over = 0, False

    def start(self) -> None:
        """Begin the processes; a first question to each lets it read what every answer needs."""
        for _ in range(self.number):
            self._hire()
            self.threads.submit(self._ask, "analyze", b"{}", 20.0)

    async def ask(self, verb: str, body: bytes, seconds: float = 20.0) -> Answer:
        """The answer to a short question."""
        if self.asked >= self.most:
            return wrong(429, f"{self.most:,} questions are waiting already: ask again in a moment")
        self.asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, self._ask, verb, body, seconds)
        finally:
            self.asked -= 1

    def _ask(self, verb: str, body: bytes, seconds: float) -> Answer:
        worker = self.free.get()
        try:
            return worker.ask(verb, body, seconds)
        except Gone:
            return wrong(422, "this took more than a page may ask for, and was ended")
        finally:
            if worker.alive:
                self.free.put(worker)
            elif not self.over:
                self.all.remove(worker)
                self._hire()

    def _hire(self) -> None:
        self.all.append(Worker())
        self.free.put(self.all[-1])

    def stop(self) -> None:
        """End all of them, also those that are at work."""
        self.over = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in list(self.all):
            worker.end()
