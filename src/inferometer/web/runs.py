"""The verbs that take long or give much, within the limits of a page: sweep, search, sensitivity, simulate, train."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import msgspec

from ..base.errors import BadValue, abbreviate
from ..base.units import plural
from ..specs.command_args import SearchArgs
from .answers import ProgressCallback
from .page_plan import ARGUMENTS, PRIVATE, PagePlan, catalogued, check_allowed, command, training_arguments

if TYPE_CHECKING:
    import numpy as np

    from ..serving.outcome import Outcome
    from ..sweep.sweep import Sweep
    from ..training.training_report import TrainReport

MAX_POINTS = 200_000  # of a sweep
MAX_PLANS = 2_000  # of a sweep: points that differ in more than batch and lengths, which take long
MAX_REQUESTS = 200_000  # of a simulation
SHOWN = 2000  # requests and points of a distribution that go to the page
_BATCH = ("batch_size", "beam_width", "turns", "images", "usecase")  # arguments of one batch, which arrivals replace
_LENGTHS = ("input_len", "output_len", "prefix_len")
_SEARCHED = (  # what a search chooses itself
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "nodes",
    "max_num_batched_tokens",
    "max_num_seqs",
    "micro_batches",
    "decode_context_parallel_size",
)


def _parameters(function: Callable[..., Any], *without: str) -> list[str]:
    """The named arguments of a function that the page may give: no files and secrets of this machine."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in (*without, *PRIVATE)]


def _without(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


# ------------------------------------------------------------------ many plans


def sweep(plan: PagePlan, axes: Any, figures: Any = None) -> dict[str, Any]:
    """Columns of every combination; arguments that do not vary are ``constants``; ``figures`` are those to give."""
    from ..sweep.grid import Grid
    from ..sweep.points import METRICS, chunks
    from ..sweep.sweep import Sweep

    axes = _axes(axes)
    figures = _figures(figures, METRICS)
    grid = Grid(**{"model": plan.model, "gpu": plan.gpu, **plan.options, **axes})
    if grid.points > MAX_POINTS:
        raise BadValue(
            f"the grid has {grid.points:,} points, more than the web page's "
            f"limit of {MAX_POINTS:,}: give fewer values, "
            "or use inferometer sweep"
        )
    if grid.num_cases > MAX_PLANS:
        raise BadValue(
            f"the grid has {grid.num_cases:,} plans, more than the web page's limit "
            f"of {MAX_PLANS:,} (batch sizes and lengths "
            "are not counted): give fewer values, or use inferometer sweep"
        )
    grid.check()
    table = Sweep(grid, chunks(grid))
    constants, columns = _columns(table, axes, METRICS)
    columns |= {name: _json_column(table.columns[name]) for name in figures}
    return {
        "schema": "inferometer.sweep/1",
        "points": len(table),
        "axes": {name: list(values) for name, values in table.axes.items()},
        "columns": columns,
        "constants": constants,
        "warnings": list(table.warnings),
        "command": command("sweep", plan, axes),
    }


def _axes(axes: Any) -> dict[str, Any]:
    axes = {name: value for name, value in axes.items() if value is not None} if isinstance(axes, Mapping) else axes
    if not isinstance(axes, dict) or not axes:
        raise BadValue(f'axes are names with their values such as {{"batch_size": "1:256:x2"}}, not {abbreviate(axes)}')
    check_allowed("axis", axes, ARGUMENTS)
    for name, value in axes.items():
        if isinstance(value, list | tuple | dict) and not value:
            raise BadValue(f"`{name}` needs at least one value")
    return catalogued(axes)


def _figures(given: Any, known: Iterable[str]) -> list[str]:
    figures = list(known) if given is None else given
    if not isinstance(figures, list) or not all(isinstance(one, str) for one in figures):
        raise BadValue(f"figures are a list of names, not {abbreviate(given)}")
    check_allowed("figure", figures, known)
    return figures


def _columns(table: Sweep, axes: Iterable[str], figures: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments that have one value, and the columns of those that vary."""
    varying = {*axes, "feasible", "reason"}
    given = {name: table.columns[name] for name in table.kinds if name not in figures}
    constants = {
        name: _json_column(column[:1])[0]
        for name, column in given.items()
        if name not in varying and (column == column[0]).all()
    }
    return constants, {name: _json_column(column) for name, column in given.items() if name not in constants}


def _json_column(column: np.ndarray) -> list[Any]:
    """A column for JSON: seven digits are more than anything here is sure of."""
    import numpy as np

    if column.dtype != float:
        return [value or None for value in column] if column.dtype == object else list(column.tolist())
    magnitude = np.where(np.isfinite(column) & (np.abs(column) > 1e-290), np.abs(column), 1.0)
    scale = 10.0 ** (6 - np.floor(np.log10(magnitude)))
    return [None if value != value else value for value in (np.round(column * scale) / scale).tolist()]


def sensitivity(plan: PagePlan, options: dict[str, Any]) -> dict[str, Any]:
    """What moves the plan; options are those of the verb."""
    from ..sensitivity.sensitivity import sensitivity as run

    if options.get("compare") is not None:
        options = {**options, "compare": catalogued({"model": options["compare"]})["model"]}
    result = run(plan.model, plan.gpu, **{**plan.options, **options})
    return {**result.to_dict(), "command": command("sensitivity", plan, _without(options, "curves"))}


def search(plan: PagePlan, options: dict[str, Any], trace: Path | None, progress: ProgressCallback) -> dict[str, Any]:
    """The best deployment on some GPUs. Of the plan its model, machine, precision and lengths count, not its layout."""
    from ..search.search import search_with_table
    from ..serving.trace import read_trace
    from ..views.text.search import header

    never = ("model", "trace", "backend", "address", "jobs", "progress", *_BATCH)
    allowed = [name for name in (*_parameters(search_with_table), *ARGUMENTS, "columns") if name not in never]
    check_allowed("key of a search", options, allowed)
    options = catalogued({name: value for name, value in options.items() if value is not None})
    options = {**_without(plan.options, *_BATCH, *_SEARCHED), **options}
    gpu = options.pop("gpu", plan.gpu)
    columns = {"columns": options.pop("columns", None)}
    if trace is None and columns["columns"] is not None:
        raise BadValue("`columns` needs a trace, and none was sent")
    if trace is not None:
        options = _without(options, *_LENGTHS)
    result = search_with_table(
        plan.model,
        gpu,
        trace=None if trace is None else read_trace(trace, **columns),
        progress=_search_progress(progress, options.get("finalists")),
        **options,
    )[0]
    line = command("search", plan.without_options()._replace(gpu=gpu), {**options, **_trace_option(trace), **columns})
    answer = {**msgspec.to_builtins(result), "title": header(result), "command": line}
    for one in (*answer["plans"], *filter(None, [answer["winner"]])):
        one["scripts"] = {engine: _script(lines) for engine, lines in one["commands"].items()}
    return answer


def _search_progress(progress: ProgressCallback, finalists: Any) -> Callable[[str, int], None]:
    """The stages of a search in a sentence: ``40 layouts estimated, simulating plan 2 of at most 6``"""
    layouts, most = 0, finalists if isinstance(finalists, int) else SearchArgs().finalists

    def report(stage: str, done: int) -> None:
        nonlocal layouts
        layouts = done if stage == "pricing" else layouts
        share = min(0.95, (done + 1) / (most + 2)) if stage == "simulating" else None
        then = {
            "simulating": f", simulating plan {done + 1} of at most {most}" if done < most else f", {done} simulated",
            "relaxing": f", none meets the limits: {plural(done, 'change')} tried to find what would",
            "windows": f", {plural(done, 'window')} of the trace sized",
            "day": ", simulating the whole trace",
        }.get(stage, "")
        progress(share, f"{plural(layouts, 'layout')} estimated{then}")

    return report


def _script(lines: Iterable[str]) -> str:
    """Lines of a shell, broken before flags so that they can be read and still be copied whole."""
    from ..views.text.document import shell_lines

    return "\n".join(dedent(shell_lines(line)) for line in lines)


# ------------------------------------------------------------------ training


def train(plan: PagePlan, options: Any) -> dict[str, Any]:
    """One optimizer step with every pass of it; of the plan its model and GPU count, the layout is training's own."""
    from ..training.train import timeline_of
    from ..training.train import train as run

    if not isinstance(options, Mapping):
        raise BadValue(f'training is an object such as {{"data_parallel_size": 8}}, not {abbreviate(options)}')
    check_allowed("key of the training", options, training_arguments())
    options = catalogued({name: value for name, value in options.items() if value is not None})
    report = run(plan.model, plan.gpu, **options)
    report.timeline = timeline_of(report)
    return {**training_answer(report), "command": command("train", plan.without_options(), options)}


def training_answer(report: TrainReport) -> dict[str, Any]:
    """A report of training as the page shows it: ``training_answer(report)["timeline"]``"""
    from ..views.plots.training import peak_text
    from ..views.text.training import header

    return {**report.to_dict(), "title": header(report), "peaks": [peak_text(stage) for stage in report.stages]}


# ------------------------------------------------------------------ simulations


def simulate(plan: PagePlan, options: dict[str, Any], trace: Path | None, progress: ProgressCallback) -> dict[str, Any]:
    """One run: the benchmark's keys, the engine over time, distributions, and some requests one by one."""
    from ..serving.simulate import simulate_and_summarize
    from ..serving.traffic import TRAFFIC_DEFAULTS, load_traffic

    options = _simulation_options(plan, options, trace)
    goals, scheduling, rest = _split(options)
    scheduling.pop("goodput_share", None)  # of the search for a rate
    header = {key: rest.get(key, TRAFFIC_DEFAULTS[key]) for key in ("request_rate", "burstiness", "seed")}
    header["burstiness"] = header["burstiness"] or 1.0
    traffic = load_traffic(rest, scheduling.get("max_concurrency"), scheduling.get("concurrent_sessions"))
    scheduling["max_concurrency"] = header["max_concurrency"] = traffic.max_concurrency
    number = len(traffic.trace)
    _check_number(number)

    def on_requests(done: int) -> None:
        progress(done / max(number, 1), f"{done:,} of {number:,} requests")

    result, outcome = simulate_and_summarize(plan.model, plan.gpu, traffic, goals, scheduling, rest, on_requests)
    return {**result, **header, **_over_time(outcome), "command": _simulate_command(plan, options, trace)}


def capacity(plan: PagePlan, options: dict[str, Any], trace: Path | None, progress: ProgressCallback) -> dict[str, Any]:
    """The highest rate that holds, and how the share of good requests falls with the rate."""
    from ..serving.capacity import capacity_and_summarize

    options = _simulation_options(plan, options, trace)
    _check_number(options.get("num_prompts") or 1000)
    goals, scheduling, rest = _split(options)
    how = {"jobs": 1, **({"share": scheduling.pop("goodput_share")} if "goodput_share" in scheduling else {})}

    def on_rates(done: int) -> None:
        progress(None, f"{done} rates tried")

    result = capacity_and_summarize(plan.model, plan.gpu, goals, how, scheduling, rest, on_rates)
    return {**result, "command": _simulate_command(plan, {**options, "find_capacity": True}, trace)}


def _simulation_options(plan: PagePlan, options: dict[str, Any], trace: Path | None) -> dict[str, Any]:
    """The options of a simulation: those of the plan that are not of one batch, and those of the traffic."""
    from ..serving.simulate import simulate as verb
    from ..serving.traffic import TRAFFIC_DEFAULTS

    own = _parameters(verb, "model", "gpu", "trace", "progress", "fast_forward")
    allowed = [*(name for name in TRAFFIC_DEFAULTS if name not in ("trace", "like")), *own, "goodput", "goodput_share"]
    check_allowed("key of the traffic", options, [*allowed, "find_capacity"])
    pools = {"pools": _known_pools(options["pools"])} if options.get("pools") is not None else {}
    kept = _without(plan.options, *_BATCH, *(() if trace is None else _LENGTHS))
    if options.get("num_prompts") is not None:
        _check_number(options["num_prompts"])
    return {**kept, **catalogued(options), **pools, **({} if trace is None else {"trace": str(trace)})}


def _known_pools(pools: Any) -> list[dict[str, Any]]:
    if not isinstance(pools, list) or not all(isinstance(pool, Mapping) for pool in pools):
        raise BadValue(f'pools are a list such as [{{"gpu": "h200", "replicas": 2}}], not {abbreviate(pools)}')
    for pool in pools:
        check_allowed("key of a pool", pool, (*ARGUMENTS, "role", "replicas"))
    return [catalogued(pool) for pool in pools]


def _check_number(requests: Any) -> None:
    if isinstance(requests, int) and requests > MAX_REQUESTS:
        raise BadValue(
            f"the web page allows `num_prompts` up to {MAX_REQUESTS:,}, not "
            f"{requests:,}: the command line has no such limit"
        )


def _split(options: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any], dict[str, Any]]:
    """Limits, the scheduler's options, and all others."""
    from ..serving.metrics import parse_goodput
    from ..serving.traffic import TRAFFIC_DEFAULTS

    rest = {"frontend": "http", **options}  # where requests come from, unless the plan says otherwise
    goals = parse_goodput(rest.pop("goodput", None) or [])
    scheduling = {name: rest.pop(name) for name in [*rest] if name not in ARGUMENTS and name not in TRAFFIC_DEFAULTS}
    return goals, scheduling, rest


def _simulate_command(plan: PagePlan, options: dict[str, Any], trace: Path | None) -> str:
    """The command; pools are a flag each there, which a page does not offer."""
    shown = {**_without(options, "trace", "pools"), **_trace_option(trace)}
    return command("simulate", plan.without_options(), shown)


def _trace_option(trace: Path | None) -> dict[str, Any]:
    return {} if trace is None else {"trace": trace.name}


def _over_time(outcome: Outcome) -> dict[str, Any]:
    """The engine over time; latencies in order (shares of requests below them); requests, evenly chosen; a replay."""
    import numpy as np

    from ..serving.metrics import latencies
    from ..serving.replay import replay
    from ..serving.session_metrics import session_lanes

    by_metric = latencies(outcome)
    distribution = {}
    for name, values in by_metric.items():
        ordered = np.sort(values[~np.isnan(values)])
        at = _evenly(len(ordered))
        distribution[f"{name}_ms"] = {
            "value": _json_column(ordered[at]),
            "share": _json_column((at + 1) / max(len(ordered), 1)),
        }
    chosen = _evenly(len(outcome.arrival_s))
    columns = {
        "arrival_s": outcome.arrival_s,
        "queue_ms": (outcome.scheduled_s - outcome.arrival_s) * 1e3,
        **{f"{name}_ms": values for name, values in by_metric.items()},
        "input_tokens": outcome.input_tokens,
        "output_tokens": outcome.output_tokens,
        "cached_tokens": outcome.cached_tokens,
        "replica": outcome.replica,
    }
    requests = {name: _json_column(column[chosen]) for name, column in columns.items()}
    return {
        "series": {name: _json_column(column) for name, column in outcome.series.items()},
        "distribution": distribution,
        "requests": {"index": chosen.tolist(), **requests},
        "replay": _json_tables(replay(outcome)),
        **({} if outcome.sessions is None else {"lanes": _json_tables(session_lanes(outcome))}),
    }


def _json_tables(given: Any) -> Any:
    """Tables in tables, their columns for JSON; single times have the digits of those in columns."""
    import numpy as np

    if isinstance(given, Mapping):
        return {name: _json_tables(value) for name, value in given.items()}
    if isinstance(given, list):
        return [_json_tables(value) for value in given]
    if isinstance(given, float):
        return _json_column(np.array([given]))[0]
    return _json_column(given) if isinstance(given, np.ndarray) else given


def _evenly(count: int) -> np.ndarray:
    """At most `SHOWN` of so many places, evenly spread."""
    import numpy as np

    return np.unique(np.linspace(0, max(count - 1, 0), min(SHOWN, count)).round().astype(int))
