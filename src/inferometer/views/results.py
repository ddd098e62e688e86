"""Results as people want them: a page, a table of pandas, a picture, an explanation.

page(report).html()                     # what a notebook shows
frame(search, "simulated")              # a pandas.DataFrame
figure(outcome, "timeline", "run.png")  # a matplotlib figure, also written

`base.result` calls these. A kind of result is one `View` in `VIEWS`, by the name of its class, and its functions
import what they draw with: nothing is loaded but what the result at hand needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..base.errors import BadValue, UnknownName
from ..base.extras import load_library, require_library
from ..base.result import Result, kept
from ..base.units import either, plural
from ..inference.explain import Explanation
from . import files
from .text.document import Page, Paragraph

if TYPE_CHECKING:
    from ..inference.report import Report
    from ..search.search_result import Candidate, Search
    from ..search.training_search_result import TrainingSearch
    from ..sensitivity.sensitivity_report import Sensitivity
    from ..serving.capacity import Capacity
    from ..serving.outcome import Outcome
    from ..sweep.sweep import Sweep
    from ..training.training_report import TrainReport
    from ..validation.validate import Validation

MAX_HTML = 56_000  # characters of a page, if leaving out small operators can make it that short
Table = list[dict[str, Any]] | Mapping[str, Any]  # rows of a table, or its columns


class View(NamedTuple):
    """How one kind of result is shown; the first table and the first picture are those without a name."""

    page: Callable[[Any], Page]
    tables: Mapping[str, Callable[[Any], Table]] = MappingProxyType({})
    pictures: Mapping[str, Callable[..., Any]] = MappingProxyType({})


def view_of(result: Any) -> View:
    """The view of a result's class, or of one that it comes from."""
    return next(VIEWS[kind.__name__] for kind in type(result).__mro__ if kind.__name__ in VIEWS)


def page(result: Any) -> Page:
    """The parts that the command line prints: ``page(report).terminal(100)``"""
    return view_of(result).page(result)


def html(result: Any) -> str:
    """The page of a notebook; of a network with very many kinds of layers, without its smallest operators."""
    text, smaller = page(result).html(), _SMALLER.get(type(result).__name__)
    return text if smaller is None or len(text) <= MAX_HTML else smaller(result, 0.01).html()


def frame(result: Any, table: str = "") -> Any:
    """A table of a result as a `pandas.DataFrame`: ``frame(outcome, "series")``"""
    make = _chosen(result, "table", table, view_of(result).tables)
    return load_library("pandas", "`to_pandas`").DataFrame(make(result))


def figure(result: Any, kind: str = "", path: str | Path | None = None, **options: Any) -> Any:
    """A picture of a result as a matplotlib figure; with a path, also written: ``figure(report, "memory", "m.svg")``"""
    draw = _chosen(result, "picture", kind, view_of(result).pictures)
    require_library("`plot`", "matplotlib")
    from .plots.canvas import FORMATS, picture, style

    form = Path(path).suffix.lstrip(".").lower() if path is not None else ""
    if path is not None and form not in FORMATS:
        raise BadValue(f"a picture is written as {either(f'.{word}' for word in FORMATS)}, not as {str(path)!r}")
    with style():
        drawn = _drawn(draw, result, options)
        if path is not None:
            files.write(path, picture(drawn, form))
    return drawn


def _drawn(draw: Callable[..., Any], result: Any, options: dict[str, Any]) -> Any:
    """The figure; an option that this picture has not is an error of the caller."""
    from inspect import signature

    known = list(signature(draw).parameters)[1:]
    for name in options:
        if name not in known:
            raise BadValue(f"this picture takes no `{name}`")
    return draw(result, **options)


def _chosen(result: Any, what: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The function of that name, or the first."""
    kind = type(result).__name__
    if not known:
        raise BadValue(f"a {kind} has no {what}")
    if name and name not in known:
        raise UnknownName(f"{kind} {what}", name, known)
    return known[name or next(iter(known))]


# ------------------------------------------------------------------ analyze


class ExplainedOperator(Result, list[Explanation]):
    """Every place where an operator works, as `Explanation`, a page for people."""

    def __repr__(self) -> str:
        places = ", ".join(f"{one.phase} {one.bound}-bound" for one in self)
        return f"<ExplainedOperator {self[0].op}: {places}>"[:199] if self else "<ExplainedOperator: no work>"


def explain(report: Report, operator: str, phase: str = "all") -> ExplainedOperator:
    """Why an operator takes as long as it does: ``explain(report, "down_proj")``"""
    from ..inference.analyze import PHASES
    from ..inference.explain import explain as explanations

    request = kept(report, "request")
    if request is None:
        raise BadValue("`explain` needs a report that `analyze` returned: a copy has no model")
    if phase not in PHASES:
        raise UnknownName("`phase`", phase, PHASES)
    return ExplainedOperator(explanations(request, operator, phase))


def _analysis(report: Report, least: float | None = None) -> Page:
    from .text.terminal import LEAST, analysis

    return analysis(report, least=LEAST if least is None else least)


def _explanation(explained: ExplainedOperator) -> Page:
    from .text.terminal import explanation

    return explanation(explained)


def _operators(report: Report | TrainReport) -> Table:
    from ..inference.report import op_rows

    return op_rows(report.phases)


def report_row(report: Report) -> dict[str, Any]:
    """One row of figures: the plan, metrics, bound and memory; reports below each other are a table."""
    row = {"model": report.model.name, "gpu": report.device["name"], "engine": report.engine["name"]}
    row |= {name: report.plan[name] for name in ("gpus", "quantization", "kv_cache_dtype")}
    row |= {name: report.workload[name] for name in ("batch_size", "input_len", "output_len")}
    row |= {"feasible": report.feasible, **msgspec.to_builtins(report.metrics)}
    row |= {f"roofline_{name}": value for name, value in msgspec.to_builtins(report.roofline).items()}
    return {**row, **msgspec.to_builtins(report.memory)}


def _phase(report: Report, phase: str) -> str:
    """The phase of `phase`; decode, or what there is."""
    if phase and phase not in report.phases:
        raise UnknownName("`phase`", phase, report.phases)
    return phase or list(report.phases)[-1]


def _roofline(report: Report) -> Any:
    from .plots.roofline import roofline

    return roofline(report)


def _distribution(report: Report, phase: str = "") -> Any:
    from .plots.analysis import distribution, parameters_on_gpu, with_adapters

    name, request = _phase(report, phase), kept(report, "request")
    model = None if request is None else with_adapters(report, request.model)
    return distribution(report, name, None if model is None else parameters_on_gpu(report, model, name))


def _memory(report: Report) -> Any:
    from .plots.analysis import memory

    return memory(report)


def _structure(report: Report, phase: str = "") -> Any:
    from .plots.analysis import with_adapters
    from .plots.structure import structure

    request = kept(report, "request")
    if request is None:
        raise BadValue("`structure` needs a report that `analyze` returned: a copy has no model")
    return structure(report, with_adapters(report, request.model), _phase(report, phase)).figure()


# ------------------------------------------------------------------ sweep


def _sweep(table: Sweep) -> Page:
    from ..sweep.sweep import Digest
    from .text.sweeps import summary

    digest = Digest(table.grid)
    for chunk in table.chunks:
        digest.add(chunk)
    return summary(table.grid, digest)


def _curves(table: Sweep, x: str = "", y: str = "") -> Any:
    from ..sweep.points import METRICS
    from .plots.curves import curves, number_axes

    axes = number_axes(table)
    if not axes and not x:
        return _front(table)  # names alone: their trade-off is what there is to see
    if x and x not in axes:
        raise UnknownName("axis with several numbers", x, axes)
    if y and y not in METRICS:
        raise UnknownName("metric", y, METRICS)
    return curves(table, x or axes[0], y)


def _front(table: Sweep) -> Any:
    from .plots.curves import front

    return front(table)


# ------------------------------------------------------------------ search


def _search(result: Search) -> Page:
    from .text.search import shown

    return shown(result, timed=False)


def _plans(result: Search) -> Table:
    from ..search.explanation import plan_rows

    if kept(result, "rejected") is None:
        raise BadValue("all plans need a result that `search` returned: a copy has only the table `simulated`")
    return plan_rows(kept(result, "table"), kept(result, "rejected"))


def _simulated(result: Search) -> Table:
    return [_simulated_row(plan) for plan in result.plans]


def _simulated_row(plan: Candidate) -> dict[str, Any]:
    """A plan that was simulated: its label, verdict and figures."""
    metrics, trial = plan.simulated or plan.priced, plan.trial
    row = {"label": plan.label, "verdict": plan.verdict, "gpu": plan.gpu, "gpus": plan.gpus, "mode": plan.mode}
    row |= {name: getattr(metrics, name) for name in metrics.__struct_fields__}
    for name in ("ttft_ms", "tpot_ms", "e2el_ms") if trial is not None else ():
        row |= {f"{key}_{name}": value for key, value in getattr(trial, name).items() if key not in ("mean", "share")}
    return row


def _pareto(result: Search) -> Any:
    from .text.search import pareto

    table = kept(result, "table")
    if table is None:
        raise BadValue("the front needs a result that `search` returned, with at least one legal plan")
    return pareto(result, table)


def _day(result: Search) -> Any:
    from .plots.timeline import day_figure
    from .text.search import header

    if result.day is None:
        raise BadValue("`day` needs a search with a `trace` whose load varies, or with `autoscale`")
    return day_figure(result.day, result.goodput_share, header(result))


# ------------------------------------------------------------------ simulate, find_capacity, validate


def _outcome(outcome: Outcome) -> Page:
    from .text.serving import run

    if kept(outcome, "summarize") is None:
        return Page([Paragraph(repr(outcome).strip("<>"), style="bold")])
    return run(outcome.summary(), outcome.series)


def _run_header(outcome: Outcome) -> str:
    from .text.serving import header

    named = kept(outcome, "summarize") is not None
    return header(outcome.summary()) if named else plural(len(outcome.arrival_s), "request")


def _requests(outcome: Outcome) -> Table:
    return files.request_columns(outcome)


def _timeline(outcome: Outcome) -> Any:
    from .plots.timeline import timeline

    return timeline(outcome, _run_header(outcome))


def _latencies(outcome: Outcome) -> Any:
    from .plots.timeline import spread

    goals = outcome.summary()["goodput"] if kept(outcome, "summarize") is not None else None
    return spread(outcome, _run_header(outcome), goals or {})


def _capacity(capacity: Capacity) -> Page:
    from .text.serving import capacity as shown

    return shown(capacity.summary())


def _rates(capacity: Capacity) -> Any:
    from .plots.timeline import tried_rates

    return tried_rates(capacity)


def _validation(validation: Validation) -> Page:
    from .text.validation import comparison

    return comparison(_run_header(validation.outcome), validation, list(validation.outcome.warnings))


def _measured(validation: Validation) -> Table:
    """A row per request, or per figure of a whole run where a benchmark reports no more."""
    if not validation.measured:
        return [{"figure": name, **msgspec.structs.asdict(one)} for name, one in validation.figures.items()]
    lengths = {name: getattr(validation.trace, name) for name in ("input_tokens", "output_tokens")}
    columns = {
        f"{metric}_ms_{side}": values[metric]
        for metric in validation.measured
        for side, values in (("measured", validation.measured), ("predicted", validation.predicted))
    }
    return {**lengths, **columns}


def _validation_picture(name: str) -> Callable[[Validation], Any]:
    def draw(validation: Validation) -> Any:
        from .text import validation as pictures

        return getattr(pictures, f"{name}_picture")(validation, _run_header(validation.outcome))

    return draw


# ------------------------------------------------------------------ sensitivity, train


def _sensitivity(report: Sensitivity) -> Page:
    from .text.sensitivity import sensitivity

    return sensitivity(report)


def _answer(report: Sensitivity) -> Any:
    """The picture that answers the question of this result."""
    from .plots.tornado import PICTURES

    return next(draw(report) for field, draw in PICTURES.values() if getattr(report, field))


def _sensitivity_picture(name: str) -> Callable[[Sensitivity], Any]:
    def draw(report: Sensitivity) -> Any:
        from .plots.tornado import PICTURES

        field, picture = PICTURES[name]
        if not getattr(report, field):
            raise BadValue(f"there is nothing for the picture {name}: `sensitivity` ran without `{field}`")
        return picture(report)

    return draw


def _training(report: TrainReport, least: float | None = None) -> Page:
    from .text.terminal import LEAST
    from .text.training import training

    return training(report, least=LEAST if least is None else least)


def _training_picture(name: str) -> Callable[[TrainReport], Any]:
    def draw(report: TrainReport) -> Any:
        from .plots.training import PICTURES

        return PICTURES[name](report)

    return draw


def _passes(report: TrainReport) -> Table:
    from .plots.training import pass_rows

    return list(pass_rows(report))


def _text(module: str, name: str, **more: Any) -> Callable[[Any], Page]:
    """A function of `views.text` that makes the page of a result: ``_text("sweeps", "training_summary")``"""

    def page(result: Any) -> Page:
        from importlib import import_module

        made: Page = getattr(import_module(f".text.{module}", __package__), name)(result, **more)
        return made

    return page


def _training_pareto(result: TrainingSearch) -> Any:
    from .text.training_search import pareto

    return pareto(result)


# ------------------------------------------------------------------ all of them


def compare(before: Any, after: Any) -> Any:
    """Two results of a kind beside each other: ``compare(bf16, fp8)``"""
    from .comparison import Comparison

    return Comparison(before, after)


def _formulas(explained: ExplainedOperator) -> Table:
    return [
        {"phase": one.phase, "block": one.block, "operator": one.op, **msgspec.to_builtins(line)}
        for one in explained
        for line in one.lines
    ]


VIEWS: dict[str, View] = {
    "Report": View(
        _analysis,
        {"operators": _operators, "metrics": lambda report: [report_row(report)]},
        {"roofline": _roofline, "distribution": _distribution, "memory": _memory, "structure": _structure},
    ),
    "ExplainedOperator": View(_explanation, {"formulas": _formulas}),
    "Comparison": View(
        lambda comparison: comparison.page(),
        {
            "metrics": lambda comparison: comparison.rows(),
            "parts": lambda comparison: [
                {**part._asdict(), "difference": part.difference} for part in comparison.parts
            ],
        },
    ),
    "Sweep": View(_sweep, {"points": lambda table: dict(table.columns)}, {"curves": _curves, "front": _front}),
    "Search": View(_search, {"plans": _plans, "simulated": _simulated}, {"pareto": _pareto, "day": _day}),
    "Outcome": View(
        _outcome,
        {"requests": _requests, "series": lambda outcome: outcome.series},
        {"timeline": _timeline, "latencies": _latencies},
    ),
    "Capacity": View(_capacity, {"rates": lambda capacity: msgspec.to_builtins(capacity.tried)}, {"rates": _rates}),
    "Validation": View(
        _validation,
        {"requests": _measured},
        {f"{name}s": _validation_picture(name) for name in ("error", "value")}
        | {name: _validation_picture(name) for name in ("scatter", "breakdown")},
    ),
    "Sensitivity": View(
        _sensitivity,
        {"rows": lambda report: report.rows()},
        {"answer": _answer}
        | {name: _sensitivity_picture(name) for name in ("tornado", "curves", "size", "compare", "usecases")},
    ),
    "TrainingSweep": View(_text("sweeps", "training_summary"), {"points": lambda table: table.points}),
    "TrainingSensitivity": View(_text("sensitivity", "training_sensitivity"), {"rows": lambda result: result.rows()}),
    "SessionSearch": View(_text("search", "sessions_shown", timed=False), {"plans": lambda result: result.rows()}),
    "TrainingSearch": View(
        _text("training_search", "shown", timed=False),
        {"layouts": lambda result: result.rows()},
        {"pareto": _training_pareto},
    ),
    "TrainReport": View(
        _training,
        {
            "operators": _operators,
            "stages": lambda report: [msgspec.to_builtins(stage) for stage in report.stages],
            "passes": _passes,
        },
        {name: _training_picture(name) for name in ("step", "schedule", "memory")},
    ),
}
_SMALLER: dict[str, Callable[[Any, float], Page]] = {"Report": _analysis, "TrainReport": _training}
