"""The verbs of the package for a page: a body as it came in JSON, the same functions as the command line's, JSON back.

answer("analyze", b'{"model": "llama-3.1-8b", "gpu": "h200"}')      # JsonAnswer(status=200, body=b'{"schema": …')
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ..base.errors import BadValue, InferometerError, UnknownName, abbreviate
from ..base.files import only_files_in
from ..inference.analyze import PHASES, check_phase, report_of
from ..inference.explain import explain
from ..inference.remedies import second_changes, works
from ..inference.report import Report
from ..inference.request import Request, build_request
from ..specs import catalog
from . import runs
from .answers import JsonAnswer, ProgressCallback, decoded, no_progress, refusal, refusal_of, result
from .page_plan import ARGUMENTS, PagePlan, check_allowed, command, file_name, page_plan

Body = dict[str, Any]
Endpoint = Callable[[Body, Path, ProgressCallback], Any]  # the folder holds files that came with the request
ENDPOINTS: dict[str, Endpoint] = {}
_numbers = itertools.count()  # of requests
ONE_PLAN = ("analyze", "roofline")  # verbs whose body is a plan and whose answer is its report


def endpoint(verb: str) -> Callable[[Endpoint], Endpoint]:
    """Register a function as what answers a verb."""

    def register(function: Endpoint) -> Endpoint:
        if verb in ENDPOINTS:
            raise ValueError(f"the verb {verb!r} is registered already")
        ENDPOINTS[verb] = function
        return function

    return register


def answer(verb: str, body: bytes, progress: ProgressCallback = no_progress, folder: Path | None = None) -> JsonAnswer:
    """Whatever comes, an answer: the result, or one sentence and the control that it is about.

    Files that came with the request are put into ``folder`` (else into a temporary one) while it is answered; no other
    files that it names are opened.
    """
    with _request_folder(folder) as own, only_files_in(str(own)):
        prefix = f"{own}{os.sep}"  # paths of files that came with the request lose it again
        try:
            status, content = result(ENDPOINTS[verb](decoded(body), own, progress))
        except InferometerError as error:
            from .catalogue import control_label

            remedies = _remedies(error, decoded(body), own) if verb in ONE_PLAN and error.field else []
            status, content = refusal_of(error, control_label, remedies)
        except (MemoryError, RecursionError):
            return refusal(422, "this needs more memory than the web page allows; the command line has no such limit")
        except Exception as error:
            traceback.print_exc()
            return refusal(500, f"internal error ({type(error).__name__}); please report it with this plan")
        return JsonAnswer(status, content.replace(prefix.encode(), b""))


@contextmanager
def _request_folder(parent: Path | None) -> Iterator[Path]:
    """A folder of a request's own that is made by who puts a file into it (most have none), and removed afterwards."""
    if parent is None:
        with tempfile.TemporaryDirectory(prefix="inferometer-") as name:
            yield Path(name)
        return
    path = parent / f"inferometer-{os.getpid()}-{next(_numbers)}"  # no other process writes into a worker's folder
    try:
        yield path
    finally:
        if path.exists():
            shutil.rmtree(path, ignore_errors=True)


# ------------------------------------------------------------------ one plan


@endpoint("analyze")
def analyze_endpoint(body: Body, folder: Path, progress: ProgressCallback) -> Any:
    """A plan is its own body: the report, the command that makes it, and the network to be drawn."""
    return _analysis(body, folder)[1]


@endpoint("roofline")
def roofline_endpoint(body: Body, folder: Path, progress: ProgressCallback) -> Any:
    """The same, and the roofline laid out."""
    from ..views.plots.roofline import roofline_chart

    report, content = _analysis(body, folder)
    return {**content, "roofline_chart": roofline_chart(report)}


def _analysis(body: Body, folder: Path) -> tuple[Report, Body]:
    from ..views.plots.structure import graph

    plan, request = _one_plan(body, folder)
    report = report_of(request)
    return report, {**report.to_dict(), "command": command("analyze", plan), "graph": graph(report, request.model)}


@endpoint("cluster")
def cluster_endpoint(body: Body, folder: Path, progress: ProgressCallback) -> Any:
    """A plan is its own body: as ``analyze --cluster --json``, and the command."""
    from ..inference.placement import placement

    plan, request = _one_plan(body, folder)
    return {**msgspec.to_builtins(placement(request)), "command": f"{command('analyze', plan)} --cluster"}


@endpoint("explain")
def explain_endpoint(body: Body, folder: Path, progress: ProgressCallback) -> Any:
    """One operator: as ``analyze --explain OP --json``."""
    op, phase = body.get("op"), body.get("phase", "all")
    if not isinstance(op, str):
        raise BadValue(f"the operator must be a name, not {abbreviate(op)}")
    if not isinstance(phase, str) or phase not in (*PHASES, "vision"):
        raise UnknownName("`phase`", phase, (*PHASES, "vision"))
    _, request = _one_plan(_plan_of(body, "op", "phase"), folder)
    if phase != "vision":
        check_phase(request, phase)
    return explain(request, op, phase)


def _remedies(error: InferometerError, given: Body, folder: Path) -> list[dict[str, Any]]:
    """What may be meant instead, or the default: changes of a refused plan that work, some only with a second one."""
    if error.suggestions or error.field not in ARGUMENTS:  # a name that is near is offered as it is
        return []
    changes = error.remedies or [{error.field: None}]
    plans = []
    for change in changes:
        try:
            plans.append((change, _one_plan({**given, **change}, folder)[1]))
        except InferometerError:
            continue
    working = [change for change, request in plans if works(request)]
    if working or not plans:
        return working
    change, request = plans[0]
    return [{**change, **second} for second in second_changes(request)] or [change for change, _ in plans]


def _one_plan(given: Any, folder: Path) -> tuple[PagePlan, Request]:
    plan = page_plan(given, folder)
    if "," in plan.gpu.partition(":")[0]:
        raise BadValue("analyze takes one GPU type; give one name to `gpu`")
    return plan, build_request(plan.model, plan.gpu, **plan.options)


def _plan_of(body: Body, *others: str) -> Any:
    """The plan of a body that may have some keys beside it."""
    check_allowed("word", body, ("plan", *others))
    return body.get("plan", {})


# ------------------------------------------------------------------ many plans


@endpoint("sweep")
def sweep_endpoint(body: Body, folder: Path, progress: ProgressCallback) -> Any:
    """Columns of every combination of the axes."""
    return runs.sweep(page_plan(_plan_of(body, "axes", "figures"), folder), body.get("axes"), body.get("figures"))


@endpoint("sensitivity")
def sensitivity_endpoint(body: Body, folder: Path, progress: ProgressCallback) -> Any:
    """What moves a plan."""
    plan = page_plan(_plan_of(body, "target", "size", "compare", "compare_usecases", "curves"), folder)
    return runs.sensitivity(plan, {name: value for name, value in body.items() if name != "plan"})


@endpoint("train")
def train_endpoint(body: Body, folder: Path, progress: ProgressCallback) -> Any:
    """One step of training the plan's model on its GPU: as ``train --json --timeline``, and the command."""
    return runs.train(page_plan(_plan_of(body, "training"), folder), body.get("training", {}))


@endpoint("search")
def search_endpoint(body: Body, folder: Path, progress: ProgressCallback) -> Any:
    """The best deployment; options as of the verb, beside the plan."""
    options = {name: value for name, value in body.items() if name not in ("plan", "trace")}
    return runs.search(page_plan(body.get("plan", {}), folder), options, _trace(body, folder), progress)


@endpoint("simulate")
def simulate_endpoint(body: Body, folder: Path, progress: ProgressCallback) -> Any:
    """Requests through an engine, or the highest rate that holds."""
    plan, traffic = page_plan(_plan_of(body, "traffic", "trace"), folder), body.get("traffic") or {}
    if not isinstance(traffic, Mapping):
        raise BadValue(f'traffic is an object such as {{"request_rate": 8}}, not {abbreviate(traffic)}')
    find_capacity = traffic.get("find_capacity", False)
    if not isinstance(find_capacity, bool):
        raise BadValue(f"`find_capacity` must be True or False, not {abbreviate(find_capacity)}")
    options = {name: value for name, value in traffic.items() if name != "find_capacity" and value is not None}
    run = runs.capacity if find_capacity else runs.simulate
    return run(plan, options, _trace(body, folder), progress)


def _trace(body: Mapping[str, Any], folder: Path) -> Path | None:
    """A trace that came as text, as a file."""
    sent = body.get("trace")
    if sent is None:
        return None
    name, text = (sent.get("name", "trace.csv"), sent.get("text")) if isinstance(sent, Mapping) else (None, None)
    if not isinstance(name, str) or not isinstance(text, str):
        raise BadValue(f'a trace is {{"name": "trace.csv", "text": "…"}}, not {abbreviate(sent)}')
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / file_name(name.replace("\\", "/").rpartition("/")[2])
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return path


# ------------------------------------------------------------------ what is shipped


@endpoint("catalogue")
def catalogue_endpoint(body: Body, folder: Path, progress: ProgressCallback) -> Any:
    """What there is to choose from."""
    from .catalogue import catalogue

    return catalogue()


@endpoint("accuracy")
def accuracy_endpoint(body: Body, folder: Path, progress: ProgressCallback) -> Any:
    """Predicted beside measured, as it stood when this version was made."""
    return catalog.accuracy()
