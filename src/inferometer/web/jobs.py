"""Requests that take long: begun, polled, cancelled; each has a process of its own.

jobs = Jobs()
job = jobs.begin("simulate", body)
jobs.status(job.name)       # b'{"job": "3f…", "state": "running", "progress": 0.4, …}'
"""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from ..base.errors import BadValue, UnknownName
from .answers import JsonAnswer, refusal
from .uploads import Uploads
from .workers import DIED_TWICE, Worker, WorkerDied

AT_ONCE = 2
MAX_WAITING = 8
KEPT = 24  # jobs that are over and can still be polled
SECONDS = 120.0  # of one


class Job(msgspec.Struct, kw_only=True):
    """What is known of one."""

    name: str
    verb: str
    begun: float
    state: str = "queued"  # queued, running, done, failed, cancelled
    progress: float | None = 0.0  # share of it; None where its length is unknown
    text: str = "started"  # the progress as text
    seconds: float = 0.0
    answer: JsonAnswer | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state not in ("queued", "running")


class TooManyJobs(BadValue):
    """More jobs than a page may have under way."""


class Jobs:
    """All jobs of a server."""

    def __init__(self, uploads: Uploads | None = None, seconds: float = SECONDS) -> None:
        self.uploads, self.limit = uploads, seconds
        self.stopped = False
        self.jobs: dict[str, Job] = {}
        self.workers: dict[str, Worker] = {}
        self.threads = ThreadPoolExecutor(AT_ONCE, "job")
        self.lock = threading.Lock()

    def begin(self, verb: str, body: bytes) -> Job:
        """Put a request in the queue."""
        with self.lock:
            under_way = sum(not job.over for job in self.jobs.values())
            if under_way >= AT_ONCE + MAX_WAITING:
                raise TooManyJobs(f"{under_way} jobs are under way already: cancel one, or wait for its end")
            for name in [name for name, job in self.jobs.items() if job.over][: -KEPT or None]:
                del self.jobs[name]
            job = Job(name=secrets.token_hex(8), verb=verb, begun=time.monotonic())
            self.jobs[job.name] = job
        self.threads.submit(self._run, job, body)
        return job

    def count(self, state: str) -> int:
        """How many are in a state: ``jobs.count("queued")``"""
        return sum(job.state == state for job in list(self.jobs.values()))

    def _run(self, job: Job, body: bytes) -> None:
        answer = refusal(422, DIED_TWICE)
        for _ in range(2):  # a worker that the system ended is replaced once
            try:
                answer = self._attempt(job, body)
                break
            except WorkerDied:
                pass
        with self.lock:
            if not job.over:
                job.seconds = time.monotonic() - job.begun
                job.answer, job.state = answer, "done" if answer.status == 200 else "failed"

    def _attempt(self, job: Job, body: bytes) -> JsonAnswer:
        with self.lock:
            if job.over or self.stopped:
                return refusal(503, "the job was cancelled")
            worker = self.workers[job.name] = Worker(self.uploads)
            job.state = "running"

        def progress(share: float | None, text: str) -> None:
            job.progress, job.text = share, text

        try:
            return worker.ask(job.verb, body, self.limit, progress)
        finally:
            with self.lock:
                self.workers.pop(job.name, None)
            worker.end()

    def find(self, name: str) -> Job:
        """The job of that name."""
        job = self.jobs.get(name)
        if job is None:
            raise UnknownName("job", name, [])
        return job

    def status(self, name: str) -> bytes:
        """How a job stands, and its result once it is done."""
        job = self.find(name)
        now = job.seconds or time.monotonic() - job.begun
        ahead = self._ahead(job)
        status: dict[str, Any] = {
            "job": job.name,
            "verb": job.verb,
            "state": job.state,
            "progress": job.progress,
            "words": job.text if ahead is None else f"queued, number {ahead + 1} in line",
            "seconds": round(now, 3),
        }
        if ahead is not None:
            status["place"] = ahead + 1
        if job.state == "done" and job.answer is not None:
            status |= {"progress": 1.0, "result": msgspec.Raw(job.answer.body)}
        elif job.state == "failed" and job.answer is not None:
            status |= msgspec.json.decode(job.answer.body)
        return msgspec.json.encode(status)

    def _ahead(self, job: Job) -> int | None:
        """How many jobs are before a queued one in the queue; None for one that is not queued."""
        queued = [name for name, one in list(self.jobs.items()) if one.state == "queued"]
        return queued.index(job.name) if job.name in queued else None

    def cancel(self, name: str) -> bytes:
        """End a job; one that is over stays as it is."""
        job = self.find(name)
        with self.lock:
            if not job.over:
                job.state, job.seconds = "cancelled", time.monotonic() - job.begun
            worker = self.workers.get(name)
        if worker is not None:
            worker.end()
        return self.status(name)

    def stop(self) -> None:
        """End all of them."""
        self.stopped = True
        for name in list(self.jobs):
            self.cancel(name)
        self.threads.shutdown(wait=False, cancel_futures=True)
