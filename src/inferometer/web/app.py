"""The server: the page, its parts, and the verbs as JSON; OpenAPI at /schema.

Guard(made(controls), "127.0.0.1")      # an ASGI application; `inferometer web` gives it to uvicorn
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from .. import __version__
from ..base.errors import BadFile, InferometerError
from .catalogue import Control
from .guard import Guard
from .jobs import Jobs, TooMany
from .schema import body_schemas, plan_schema, with_body
from .verbs import Answer, wrong
from .workers import Crew

QUICK = {"analyze": 20.0, "explain": 20.0, "sweep": 30.0, "sensitivity": 30.0}  # verb -> s that are waited
LONG = ("simulate", "search")  # these become jobs
REMEMBERED = 256  # answers: a slider that comes back asks the same again
LARGEST = 1_000_000  # bytes of an answer that is remembered
ABOUT = {
    "analyze": "One plan, explained: the report, the command that makes it, and the network to be drawn.",
    "explain": "One operator: formulas, values put in, and where its efficiency comes from.",
    "sweep": "Every combination of some axes, as columns.",
    "sensitivity": "What moves a plan: every figure of the machine, 10% up and down.",
    "simulate": "Begin a simulation of requests; answers with a job.",
    "search": "Begin the search for the best deployment; answers with a job.",
}


class Wrong(msgspec.Struct):
    """Why a request is refused: the sentence of the command line, and the control that it concerns."""

    error: str
    control: str | None = None


class Desk:
    """Where short questions are asked: the same one is answered once, also while its answer is still on the way."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.known: OrderedDict[tuple[str, bytes], asyncio.Task[Answer]] = OrderedDict()

    async def ask(self, verb: str, body: bytes = b"{}") -> Answer:
        """The answer, from a worker or from memory."""
        key = (verb, body)
        task = self.known.get(key)
        if task is None:
            task = self.known[key] = asyncio.create_task(self.crew.ask(verb, body, QUICK.get(verb, 30.0)))
            if len(self.known) > REMEMBERED:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        keep = False
        try:
            found = await asyncio.shield(task)
            keep = found.status == 200 and len(found.body) <= LARGEST
        finally:
            if not keep:
                self.known.pop(key, None)
        return found


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


def made(controls: Sequence[Control], host: str = "127.0.0.1", workers: int | None = None) -> Guard:
    """The application behind its gate; its processes begin and end with the server's life."""
    from litestar import Litestar, Response
    from litestar.exceptions import HTTPException
    from litestar.openapi import OpenAPIConfig
    from litestar.openapi.plugins import JsonRenderPlugin
    from litestar.response import File
    from litestar.static_files import create_static_files_router

    crew, jobs = Crew(workers or min(4, os.cpu_count() or 1)), Jobs()
    desk = Desk(crew)

    @asynccontextmanager
    async def alive(_: Litestar) -> AsyncIterator[None]:
        crew.start()
        first = asyncio.create_task(desk.ask("catalogue"))  # so that it is there when the page asks for it
        try:
            yield
        finally:
            first.cancel()
            crew.stop()
            jobs.stop()

    def refused(_: Any, error: Exception) -> Any:
        status = getattr(error, "status_code", 500)
        return _response(wrong(status, str(getattr(error, "detail", "") or "inferometer made a mistake")))

    app = Litestar(
        [
            *_pages(),
            *_questions(controls, desk),
            *_jobs(controls, jobs),
            create_static_files_router("/static", [static()], include_in_schema=False),
        ],
        lifespan=[alive],
        exception_handlers={HTTPException: refused},
        logging_config=None,
        request_max_body_size=None,
        signature_namespace={"Response": Response, "File": File},  # which are known inside of functions alone
        openapi_config=OpenAPIConfig("inferometer", __version__, render_plugins=[JsonRenderPlugin(path="/")]),
    )
    return Guard(app, host)  # type: ignore[arg-type]


def _response(found: Answer) -> Any:
    from litestar import Response

    return Response(
        found.body, status_code=found.status, media_type="application/json", headers={"cache-control": "no-store"}
    )


def _pages() -> list[Any]:
    """The page and the library that draws its charts."""
    from litestar import get
    from litestar.response import File

    @get("/", include_in_schema=False, sync_to_thread=False)
    def page() -> File:
        return File(static() / "index.html", media_type="text/html", content_disposition_type="inline")

    @get("/plotly.js", include_in_schema=False, sync_to_thread=False)
    def charts() -> File:
        return File(
            plotly(),
            media_type="text/javascript",
            content_disposition_type="inline",
            headers={"cache-control": "max-age=86400"},
        )

    return [page, charts]


def _questions(controls: Sequence[Control], desk: Desk) -> list[Any]:
    """What is answered at once."""
    from litestar import Response, get, post
    from litestar.openapi import ResponseSpec

    said = msgspec.json.encode(controls)
    bodies = body_schemas(plan_schema(controls))

    async def asked(verb: str, body: bytes = b"{}") -> Response[Any]:
        response: Response[Any] = _response(await desk.ask(verb, body))
        return response

    @get("/api/controls", sync_to_thread=False, summary="The words of a plan: labels, help, units, bounds.")
    def words() -> Response[Any]:
        response: Response[Any] = _response(Answer(200, said))
        return response

    @get("/api/catalogue", summary="Models, hardware, engines, precisions, use cases, presets.")
    async def catalogue() -> Response[Any]:
        return await asked("catalogue")

    @get("/api/accuracy", summary="Predicted beside measured, as shipped.")
    async def accuracy() -> Response[Any]:
        return await asked("accuracy")

    def route(verb: str) -> Any:
        @post(
            f"/api/{verb}",
            status_code=200,
            name=verb,
            summary=ABOUT[verb],
            operation_id=verb,
            operation_class=with_body(bodies[verb]),
            responses={400: ResponseSpec(Wrong)},
        )
        async def answered(body: bytes) -> Response[Any]:
            return await asked(verb, body)

        return answered

    return [words, catalogue, accuracy, *map(route, QUICK)]


def _jobs(controls: Sequence[Control], jobs: Jobs) -> list[Any]:
    """What takes long: begun, looked at, cancelled."""
    from litestar import Response, delete, get, post
    from litestar.openapi import ResponseSpec

    bodies = body_schemas(plan_schema(controls))

    def route(verb: str) -> Any:
        @post(
            f"/api/{verb}",
            status_code=202,
            name=verb,
            summary=ABOUT[verb],
            operation_id=verb,
            sync_to_thread=False,
            operation_class=with_body(bodies[verb]),
            responses={400: ResponseSpec(Wrong)},
        )
        def begun(body: bytes) -> Response[Any]:
            try:
                job = jobs.begin(verb, body)
                found = Answer(202, msgspec.json.encode({"job": job.name}))
            except TooMany as error:
                found = wrong(429, str(error))
            response: Response[Any] = _response(found)
            return response

        return begun

    def known(look: Any, name: str) -> Response[Any]:
        try:
            found = Answer(200, look(name))
        except InferometerError as error:
            found = wrong(404, str(error))
        response: Response[Any] = _response(found)
        return response

    @get(
        "/api/jobs/{job:str}",
        sync_to_thread=False,
        summary="How a job stands, and its result once it is done.",
        responses={404: ResponseSpec(Wrong)},
    )
    def told(job: str) -> Response[Any]:
        return known(jobs.told, job)

    @delete(
        "/api/jobs/{job:str}",
        status_code=200,
        sync_to_thread=True,
        summary="Cancel a job.",
        responses={404: ResponseSpec(Wrong)},
    )
    def cancelled(job: str) -> Response[Any]:
        return known(jobs.cancel, job)

    return [*map(route, LONG), told, cancelled]
