"""Requests that take long: begun, polled, cancelled; each has a process of its own.

jobs = Jobs()
job = jobs.begin("simulate", body)
jobs.status(job.name)       # b'{"job": "3f…", "state": "running", "progress": 0.4, …}'

The result of a job can be fetched again while it is kept: for some hours, and in bounded memory. Its name is enough for
that, so names are random and cannot be guessed.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from ..base.errors import BadValue, abbreviate
from .answers import JsonAnswer, refusal
from .uploads import Uploads
from .workers import DIED_TWICE, Worker, WorkerDied

AT_ONCE = 2
MAX_WAITING = 8
SECONDS = 120.0  # of one
KEPT_HOURS = 24.0  # results, by default
KEPT_JOBS = 200  # of them at most
KEPT_BYTES = 128_000_000  # of all of them together


class Job(msgspec.Struct, kw_only=True):
    """What is known of one."""

    name: str
    verb: str
    begun: float
    request: bytes  # a digest of the verb and its body
    state: str = "queued"  # queued, running, done, failed, cancelled
    progress: float | None = 0.0  # share of it; None where its length is unknown
    text: str = "starting"  # the progress as text
    seconds: float = 0.0
    ended: float = 0.0  # when it was over, or was submitted again
    answer: JsonAnswer | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state not in ("queued", "running")


class TooManyJobs(BadValue):
    """More jobs than a page may have under way."""


class Jobs:
    """All jobs of a server."""

    def __init__(
        self, uploads: Uploads | None = None, seconds: float = SECONDS, kept_hours: float = KEPT_HOURS
    ) -> None:
        self.uploads, self.limit, self.kept_s = uploads, seconds, kept_hours * 3600
        self.stopped = False
        self.jobs: dict[str, Job] = {}
        self.workers: dict[str, Worker] = {}
        self.threads = ThreadPoolExecutor(AT_ONCE, "job")
        self.lock = threading.Lock()

    def begin(self, verb: str, body: bytes) -> Job:
        """Put a request in the queue; one whose result is there already is that job."""
        request = hashlib.blake2b(verb.encode() + b"\0" + body).digest()
        with self.lock:
            self._forget()
            same = next((job for job in self.jobs.values() if job.request == request and job.state == "done"), None)
            if same is not None:
                same.ended = time.monotonic()
                return same
            under_way = sum(not job.over for job in self.jobs.values())
            if under_way >= AT_ONCE + MAX_WAITING:
                raise TooManyJobs(f"{under_way} jobs are already running: cancel one, or wait for it to end")
            job = Job(name=secrets.token_hex(16), verb=verb, begun=time.monotonic(), request=request)
            self.jobs[job.name] = job
        self.threads.submit(self._run, job, body)
        return job

    def count(self, state: str) -> int:
        """How many are in a state: ``jobs.count("queued")``"""
        return sum(job.state == state for job in list(self.jobs.values()))

    def _forget(self) -> None:
        """Drop what is over and too old, or one too many, or too large with those that ended after it."""
        size, now = 0, time.monotonic()
        over = sorted((job for job in self.jobs.values() if job.over), key=lambda job: -job.ended)
        for number, job in enumerate(over):
            size += len(job.answer.body) if job.answer is not None else 0
            too_much = number >= KEPT_JOBS or (size > KEPT_BYTES and number > 0)
            if too_much or now - job.ended > self.kept_s:
                del self.jobs[job.name]

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
                job.answer = answer
                self._end(job, "done" if answer.status == 200 else "failed")
            self._forget()

    def _end(self, job: Job, state: str) -> None:
        job.ended = time.monotonic()
        job.seconds, job.state = job.ended - job.begun, state

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
        with self.lock:
            self._forget()
            job = self.jobs.get(name)
        if job is None:
            raise BadValue(
                f"there is no job {abbreviate(name)}: this server keeps results for {self.kept_s / 3600:g} h, "
                f"and the last {KEPT_JOBS} of them at most"
            )
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
            "words": job.text if ahead is None else _queued(ahead),
            "seconds": round(now, 3),
        }
        if ahead is not None:
            status["place"] = ahead + 1
        if job.state == "done" and job.answer is not None:
            left = self.kept_s - (time.monotonic() - job.ended)
            status |= {"progress": 1.0, "kept_s": round(left), "result": msgspec.Raw(job.answer.body)}
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
                self._end(job, "cancelled")
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


def _queued(ahead: int) -> str:
    """``queued, 2 ahead of it``"""
    return f"queued, {ahead:,} ahead of it" if ahead else "queued, next in line"
