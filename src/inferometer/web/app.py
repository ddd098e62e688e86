"""The server: the page, its parts, and the verbs as JSON; OpenAPI at /schema.

create_app(controls, "127.0.0.1")      # an ASGI application behind its `Guard`; `inferometer web` gives it to uvicorn
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from .. import __version__
from ..base.errors import BadFile, InferometerError
from ..views.plots.palette import palette_css
from .answers import JsonAnswer, Refusal, refusal
from .catalogue import Control
from .guard import Guard
from .jobs import Jobs, TooManyJobs
from .schema import body_schemas, plan_schema, with_body
from .workers import WorkerPool

TIMEOUTS = {"analyze": 20.0, "explain": 20.0, "sweep": 30.0, "sensitivity": 30.0}  # s; verbs that answer at once
JOBS = ("simulate", "search")  # verbs that take long
CACHED_ANSWERS = 256  # a slider that comes back asks the same again
LARGEST_CACHED = 1_000_000  # bytes
SUMMARIES = {
    "analyze": "One plan, explained: the report, the command that makes it, and the network to be drawn.",
    "explain": "One operator: formulas, values put in, and where its efficiency comes from.",
    "sweep": "Every combination of some axes, as columns.",
    "sensitivity": "What moves a plan: every figure of the machine, 10% up and down.",
    "simulate": "Begin a simulation of requests; answers with a job.",
    "search": "Begin the search for the best deployment; answers with a job.",
}


class AnswerCache:
    """Short requests: the same one is answered once, also while its answer is still on the way."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self.tasks: OrderedDict[tuple[str, bytes], asyncio.Task[JsonAnswer]] = OrderedDict()

    async def ask(self, verb: str, body: bytes = b"{}") -> JsonAnswer:
        """The answer, from a worker or from memory."""
        key = (verb, body)
        task = self.tasks.get(key)
        if task is None:
            task = self.tasks[key] = asyncio.create_task(self.pool.ask(verb, body, TIMEOUTS.get(verb, 30.0)))
            if len(self.tasks) > CACHED_ANSWERS:
                self.tasks.popitem(last=False)
        self.tasks.move_to_end(key)
        keep = False
        try:
            answer = await asyncio.shield(task)
            keep = answer.status == 200 and len(answer.body) <= LARGEST_CACHED
        finally:
            if not keep:
                self.tasks.pop(key, None)
        return answer


def plotly() -> Path:
    """The charts' library, out of the installed package."""
    from importlib.util import find_spec

    spec = find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path
    raise BadFile("the package plotly, whose plotly.min.js draws the page's charts, is not installed")


def static() -> Path:
    """The folder of the page's own files."""
    return Path(str(files(__package__))) / "static"


def create_app(controls: Sequence[Control], host: str = "127.0.0.1", workers: int | None = None) -> Guard:
    """The application behind its gate; its processes begin and end with the server's life."""
    from litestar import Litestar, Response
    from litestar.exceptions import HTTPException
    from litestar.openapi import OpenAPIConfig
    from litestar.openapi.plugins import JsonRenderPlugin
    from litestar.response import File
    from litestar.static_files import create_static_files_router

    pool, jobs = WorkerPool(workers or min(4, os.cpu_count() or 1)), Jobs()
    cache = AnswerCache(pool)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        pool.start()
        first = asyncio.create_task(cache.ask("catalogue"))  # so that it is there when the page asks for it
        try:
            yield
        finally:
            first.cancel()
            pool.stop()
            jobs.stop()

    def refused(_: Any, error: Exception) -> Any:
        status = getattr(error, "status_code", 500)
        return _response(refusal(status, str(getattr(error, "detail", "") or "inferometer made a mistake")))

    app = Litestar(
        [
            *_page_routes(),
            *_answer_routes(controls, cache),
            *_job_routes(controls, jobs),
            create_static_files_router("/static", [static()], include_in_schema=False),
        ],
        lifespan=[lifespan],
        exception_handlers={HTTPException: refused},
        logging_config=None,
        request_max_body_size=None,
        signature_namespace={"Response": Response, "File": File},  # imported inside of functions alone
        openapi_config=OpenAPIConfig("inferometer", __version__, render_plugins=[JsonRenderPlugin(path="/")]),
    )
    return Guard(app, host)  # type: ignore[arg-type]


def _response(answer: JsonAnswer) -> Any:
    from litestar import Response

    headers = {"cache-control": "no-store"}
    return Response(answer.body, status_code=answer.status, media_type="application/json", headers=headers)


def _page_routes() -> list[Any]:
    """The page, its colours, and the library that draws its charts."""
    from litestar import Response, get
    from litestar.response import File

    @get("/", include_in_schema=False, sync_to_thread=False)
    def page() -> File:
        return File(static() / "index.html", media_type="text/html", content_disposition_type="inline")

    @get("/palette.css", include_in_schema=False, sync_to_thread=False)
    def palette() -> Response[Any]:
        return Response(palette_css(), media_type="text/css")

    @get("/plotly.js", include_in_schema=False, sync_to_thread=False)
    def charts() -> File:
        return File(
            plotly(),
            media_type="text/javascript",
            content_disposition_type="inline",
            headers={"cache-control": "max-age=86400"},
        )

    return [page, palette, charts]


def _answer_routes(controls: Sequence[Control], cache: AnswerCache) -> list[Any]:
    """What is answered at once."""
    from litestar import Response, get, post
    from litestar.openapi import ResponseSpec

    encoded = msgspec.json.encode(controls)
    bodies = body_schemas(plan_schema(controls))

    async def ask(verb: str, body: bytes = b"{}") -> Response[Any]:
        response: Response[Any] = _response(await cache.ask(verb, body))
        return response

    @get("/api/controls", sync_to_thread=False, summary="The words of a plan: labels, help, units, bounds.")
    def list_controls() -> Response[Any]:
        response: Response[Any] = _response(JsonAnswer(200, encoded))
        return response

    @get("/api/catalogue", summary="Models, hardware, engines, precisions, use cases, presets.")
    async def catalogue() -> Response[Any]:
        return await ask("catalogue")

    @get("/api/accuracy", summary="Predicted beside measured, as shipped.")
    async def accuracy() -> Response[Any]:
        return await ask("accuracy")

    def route(verb: str) -> Any:
        @post(
            f"/api/{verb}",
            status_code=200,
            name=verb,
            summary=SUMMARIES[verb],
            operation_id=verb,
            operation_class=with_body(bodies[verb]),
            responses={400: ResponseSpec(Refusal)},
        )
        async def answered(body: bytes) -> Response[Any]:
            return await ask(verb, body)

        return answered

    return [list_controls, catalogue, accuracy, *map(route, TIMEOUTS)]


def _job_routes(controls: Sequence[Control], jobs: Jobs) -> list[Any]:
    """What takes long: begun, polled, cancelled."""
    from litestar import Response, delete, get, post
    from litestar.openapi import ResponseSpec

    bodies = body_schemas(plan_schema(controls))

    def route(verb: str) -> Any:
        @post(
            f"/api/{verb}",
            status_code=202,
            name=verb,
            summary=SUMMARIES[verb],
            operation_id=verb,
            sync_to_thread=False,
            operation_class=with_body(bodies[verb]),
            responses={400: ResponseSpec(Refusal)},
        )
        def begin(body: bytes) -> Response[Any]:
            response: Response[Any] = _response(_begin(jobs, verb, body))
            return response

        return begin

    @get(
        "/api/jobs/{job:str}",
        sync_to_thread=False,
        summary="How a job stands, and its result once it is done.",
        responses={404: ResponseSpec(Refusal)},
    )
    def status(job: str) -> Response[Any]:
        response: Response[Any] = _response(_of_job(jobs.status, job))
        return response

    @delete(
        "/api/jobs/{job:str}",
        status_code=200,
        sync_to_thread=True,
        summary="Cancel a job.",
        responses={404: ResponseSpec(Refusal)},
    )
    def cancel(job: str) -> Response[Any]:
        response: Response[Any] = _response(_of_job(jobs.cancel, job))
        return response

    return [*map(route, JOBS), status, cancel]


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
