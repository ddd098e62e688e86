"""Questions that take long: begun, looked at from time to time, cancelled; each has a process of its own.

jobs = Jobs()
job = jobs.begin("simulate", body)
jobs.told(job.name)         # b'{"job": "3f…", "state": "running", "progress": 0.4, …}'
"""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from ..base.errors import BadValue, UnknownName
from .verbs import Answer
from .workers import Gone, Worker

AT_ONCE = 2
WAITING = 8
KEPT = 24  # jobs that are over and can still be looked at
SECONDS = 120.0  # of one


class Job(msgspec.Struct, kw_only=True):
    """What is known of one."""

    name: str
    verb: str
    begun: float
    state: str = "running"  # running, done, failed, cancelled
    progress: float | None = 0.0  # share of it; None where nobody knows how long it is
    words: str = "waiting"
    seconds: float = 0.0
    answer: Answer | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state != "running"


class TooMany(BadValue):
    """More jobs than a page may have under way."""


class Jobs:
    """All jobs of a server."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.limit = seconds
        self.known: dict[str, Job] = {}
        self.workers: dict[str, Worker] = {}
        self.threads = ThreadPoolExecutor(AT_ONCE, "job")
        self.lock = threading.Lock()

    def begin(self, verb: str, body: bytes) -> Job:
        """Put a question in line."""
        with self.lock:
            running = sum(not job.over for job in self.known.values())
            if running >= AT_ONCE + WAITING:
                raise TooMany(f"{running} jobs are under way already: cancel one, or wait for its end")
            for name in [name for name, job in self.known.items() if job.over][: -KEPT or None]:
                del self.known[name]
            job = Job(name=secrets.token_hex(8), verb=verb, begun=time.monotonic())
            self.known[job.name] = job
        self.threads.submit(self._run, job, body)
        return job

    def _run(self, job: Job, body: bytes) -> None:
        with self.lock:
            if job.over:
                return
            worker = self.workers[job.name] = Worker()

        def tell(share: float | None, words: str) -> None:
            job.progress, job.words = share, words

        try:
            found = worker.ask(job.verb, body, self.limit, tell)
        except Gone:
            found = Answer(422, msgspec.json.encode({"error": "the job was ended: it took too much", "control": None}))
        with self.lock:
            del self.workers[job.name]
            job.seconds = time.monotonic() - job.begun
            if not job.over:
                job.answer, job.state = found, "done" if found.status == 200 else "failed"
        worker.end()

    def find(self, name: str) -> Job:
        """The job of that name."""
        found = self.known.get(name)
        if found is None:
            raise UnknownName("job", name, [])
        return found

    def told(self, name: str) -> bytes:
        """How a job stands, and its result once it is done."""
        job = self.find(name)
        body = msgspec.Raw(job.answer.body) if job.answer is not None else None
        now = job.seconds or time.monotonic() - job.begun
        found: dict[str, Any] = {
            "job": job.name,
            "verb": job.verb,
            "state": job.state,
            "progress": job.progress,
            "words": job.words,
            "seconds": round(now, 3),
        }
        if job.state == "done":
            found |= {"progress": 1.0, "result": body}
        elif job.state == "failed" and job.answer is not None:
            found |= msgspec.json.decode(job.answer.body)
        return msgspec.json.encode(found)

    def cancel(self, name: str) -> bytes:
        """End a job; one that is over stays as it is."""
        job = self.find(name)
        with self.lock:
            if not job.over:
                job.state, job.seconds = "cancelled", time.monotonic() - job.begun
            worker = self.workers.get(name)
        if worker is not None:
            worker.end()
        return self.told(name)

    def stop(self) -> None:
        """End all of them."""
        for name in list(self.known):
            self.cancel(name)
        self.threads.shutdown(wait=False, cancel_futures=True)
