"""The server: the page, its parts, and the verbs as JSON; OpenAPI at /schema.

create_app(controls)      # an ASGI application behind its `Guard`; `inferometer web` gives it to uvicorn
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..base.errors import InferometerError
from .answers import JsonAnswer, refusal
from .catalogue import Control
from .guard import Application, Guard, Receive, Scope, Send, Token
from .jobs import KEPT_HOURS, Jobs, TooManyJobs
from .operations import CONTENT_TYPE, Gauge, Observer, RequestLog, resident_bytes
from .page_files import ASK_AGAIN, FOREVER, PageFiles
from .schema import document
from .uploads import Uploads
from .workers import WorkerPool

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    Endpoint = Callable[[Request], Any]

TIMEOUTS = {  # s; verbs that answer at once
    **dict.fromkeys(("analyze", "roofline", "cluster", "explain"), 20.0),
    **dict.fromkeys(("sweep", "sensitivity", "train"), 30.0),
}
JOBS = ("simulate", "search")  # verbs that take long
CACHED_BYTES = 64_000_000  # of answers: a slider that comes back asks the same again
LARGEST_CACHED = 1_000_000  # bytes


class AnswerCache:
    """Short requests: the same one is answered once, also while its answer is still on the way."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self.tasks: dict[bytes, asyncio.Task[JsonAnswer]] = {}  # under way
        self.answers: OrderedDict[bytes, JsonAnswer] = OrderedDict()
        self.bytes = 0

    async def ask(self, verb: str, body: bytes = b"{}") -> JsonAnswer:
        """The answer, from a worker or from memory."""
        key = hashlib.blake2b(verb.encode() + b"\0" + body).digest()
        if key in self.answers:
            self.answers.move_to_end(key)
            return self.answers[key]
        task = self.tasks.get(key)
        if task is None:
            task = self.tasks[key] = asyncio.create_task(self.pool.ask(verb, body, TIMEOUTS.get(verb, 30.0)))
            task.add_done_callback(lambda done: self._done(key, done))
        return await asyncio.shield(task)

    def _done(self, key: bytes, task: asyncio.Task[JsonAnswer]) -> None:
        del self.tasks[key]
        if task.cancelled() or task.exception() is not None:
            return
        answer = task.result()
        if answer.status == 200 and len(answer.body) <= LARGEST_CACHED:
            self.answers[key] = answer
            self.bytes += len(answer.body)
            while self.bytes > CACHED_BYTES:
                self.bytes -= len(self.answers.popitem(last=False)[1].body)


class WebApp:
    """The application with all that it needs: ``WebApp(controls(), Guard…)``; uvicorn calls it for every request."""

    def __init__(
        self, controls: Sequence[Control], workers: int, log: RequestLog, kept_hours: float = KEPT_HOURS
    ) -> None:
        self.controls = msgspec.json.encode(controls)
        self.document = msgspec.json.encode(document(controls))
        self.files = PageFiles(__version__.encode() + self.controls)
        self.uploads = Uploads()
        self.pool, self.jobs = WorkerPool(workers, self.uploads), Jobs(self.uploads, kept_hours=kept_hours)
        self.cache = AnswerCache(self.pool)
        routes = [*_page_routes(self), *_answer_routes(self), *_job_routes(self), *_operator_routes(self)]
        self.compressed = _compressed(_starlette(routes, self._lifespan))
        self.guard = Guard(self.compressed)
        self.observer = Observer(self._guarded, log, [route.path for route in routes])
        self.connections: Callable[[], int] = lambda: 0  # open ones, which the server knows
        self.refusal: Callable[[int, str], JsonAnswer] = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, counted and logged."""
        await self.observer(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.guard(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        """Processes begin and end with the server's life."""
        self.pool.start()
        first = asyncio.create_task(self.cache.ask("catalogue"))  # so that it is there when the page asks for it
        try:
            yield
        finally:
            first.cancel()
            self.stop()

    def stop(self) -> None:
        """End every process and remove every file; twice does no harm."""
        self.pool.stop()
        self.jobs.stop()
        self.uploads.stop()

    def health(self) -> dict[str, Any]:
        """Whether it can answer, and how its workers stand."""
        pool = self.pool
        alive = sum(worker.alive for worker in list(pool.workers))
        return {
            "live": True,
            "ready": pool.ready and alive > 0 and not pool.stopped,
            "workers": {"alive": alive, "busy": pool.busy, "wanted": pool.number, "replaced": pool.replaced},
            "queued": pool.queued,
            "jobs": {state: self.jobs.count(state) for state in ("queued", "running")},
        }

    def gauges(self) -> list[Gauge]:
        """Metrics for Prometheus beside those of requests."""
        now = self.health()
        workers, jobs = now["workers"], now["jobs"]
        processes = [worker.process.pid for worker in [*self.pool.workers, *self.jobs.workers.values()]]
        return [
            Gauge("inferometer_ready", "1 if the server can answer.", float(now["ready"])),
            Gauge("inferometer_connections", "Open connections.", self.connections()),
            Gauge("inferometer_queue_length", "Requests waiting for a worker.", now["queued"]),
            Gauge("inferometer_workers", "Worker processes for short requests.", workers["alive"]),
            Gauge("inferometer_workers_busy", "Worker processes that are busy.", workers["busy"]),
            Gauge(
                "inferometer_workers_replaced_total",
                "Workers that died or timed out.",
                workers["replaced"],
                "counter",
            ),
            Gauge("inferometer_jobs_queued", "Jobs waiting.", jobs["queued"]),
            Gauge("inferometer_jobs_running", "Jobs running.", jobs["running"]),
            Gauge("process_resident_memory_bytes", "Memory of the server itself.", resident_bytes()),
            Gauge(
                "inferometer_workers_resident_memory_bytes",
                "Memory of all workers; shared memory is counted for each.",
                sum(resident_bytes(process) for process in processes if process),
            ),
        ]


def create_app(
    controls: Sequence[Control],
    host: str = "127.0.0.1",
    *,
    names: Iterable[str] = (),
    token: str | None = None,
    workers: int | None = None,
    log: str = "off",
    kept_hours: float = KEPT_HOURS,
) -> WebApp:
    """The application behind its gate, for a server at ``host`` that is also called ``names``."""
    app = WebApp(controls, workers or min(4, os.cpu_count() or 1), RequestLog(log), kept_hours)
    app.guard = Guard(app.compressed, host, names, Token(token) if token else None, app.files.version)
    return app


def _starlette(routes: Sequence[Route], lifespan: Any) -> Starlette:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException

    def refused(_: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        detail = {404: "not found", 405: "method not allowed", 500: "internal error"}
        headers = getattr(error, "headers", None) or {}
        return _response(refusal(status, detail.get(status, str(getattr(error, "detail", "")))), headers)

    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: refused, Exception: refused})
    app.router.redirect_slashes = False
    return app


def _compressed(app: Starlette) -> Application:
    """The same application; large answers are compressed, at the level that takes the least time."""
    from starlette.middleware.gzip import GZipMiddleware

    return GZipMiddleware(app, minimum_size=4096, compresslevel=1)


def _response(answer: JsonAnswer, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import Response

    headers = {**(headers or {}), "cache-control": "no-store"}
    return Response(answer.body, status_code=answer.status, media_type="application/json", headers=headers)


def _page_routes(app: WebApp) -> list[Route]:
    """The page, its parts under the address of this version or without one, and the library that draws its charts."""
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    async def page(request: Request) -> Response:
        return app.files.index().response(request)

    async def part(request: Request) -> Response:
        file = await run_in_threadpool(app.files.get, request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        same = request.path_params.get("version") == app.files.version
        return file.response(request, FOREVER if same else ASK_AGAIN)

    return [Route("/", page), Route("/static/{name}", part), Route("/static/{version}/{name}", part)]


def _answer_routes(app: WebApp) -> list[Route]:
    """What is answered at once."""
    from starlette.routing import Route

    async def list_controls(_: Request) -> Response:
        return _response(JsonAnswer(200, app.controls))

    async def schema(_: Request) -> Response:
        return _response(JsonAnswer(200, app.document))

    def shipped(verb: str) -> Endpoint:
        async def answered(_: Request) -> Response:
            return _response(await app.cache.ask(verb))

        return answered

    def route(verb: str) -> Endpoint:
        async def answered(request: Request) -> Response:
            return _response(await app.cache.ask(verb, await request.body()))

        return answered

    return [
        Route("/schema", schema),
        Route("/api/controls", list_controls),
        Route("/api/catalogue", shipped("catalogue")),
        Route("/api/accuracy", shipped("accuracy")),
        *(Route(f"/api/{verb}", route(verb), methods=["POST"]) for verb in TIMEOUTS),
    ]


def _job_routes(app: WebApp) -> list[Route]:
    """What takes long: begun, polled, cancelled."""
    from starlette.concurrency import run_in_threadpool
    from starlette.routing import Route

    def route(verb: str) -> Endpoint:
        async def begin(request: Request) -> Response:
            return _response(_begin(app.jobs, verb, await request.body()))

        return begin

    async def status(request: Request) -> Response:
        return _response(_of_job(app.jobs.status, request.path_params["job"]))

    async def cancel(request: Request) -> Response:
        return _response(await run_in_threadpool(_of_job, app.jobs.cancel, request.path_params["job"]))

    return [
        *(Route(f"/api/{verb}", route(verb), methods=["POST"]) for verb in JOBS),
        Route("/api/jobs/{job}", status, methods=["GET"]),
        Route("/api/jobs/{job}", cancel, methods=["DELETE"]),
    ]


def _operator_routes(app: WebApp) -> list[Route]:
    """How the server stands: for probes and for Prometheus."""
    from starlette.responses import Response
    from starlette.routing import Route

    async def healthz(_: Request) -> Response:
        health = app.health()
        return _response(JsonAnswer(200 if health["ready"] else 503, msgspec.json.encode(health)))

    async def live(_: Request) -> Response:
        return _response(JsonAnswer(200, b'{"live":true}'))

    async def metrics(_: Request) -> Response:
        text = app.observer.metrics.text(app.gauges())
        return Response(text, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})

    return [Route("/healthz", healthz), Route("/healthz/live", live), Route("/metrics", metrics)]


def _begin(jobs: Jobs, verb: str, body: bytes) -> JsonAnswer:
    try:
        return JsonAnswer(202, msgspec.json.encode({"job": jobs.begin(verb, body).name}))
    except TooManyJobs as error:
        return refusal(429, str(error))


def _of_job(action: Callable[[str], bytes], name: str) -> JsonAnswer:
    try:
        return JsonAnswer(200, action(name))
    except InferometerError as error:
        return refusal(404, str(error))
