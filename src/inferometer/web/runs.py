"""The verbs that take long or give much, within the limits of a page: sweep, search, sensitivity, simulate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..base.errors import BadValue, UnknownName, abbreviate
from .words import WORDS, Plan, command, known

if TYPE_CHECKING:
    import numpy as np

    from ..serving.outcome import Outcome

Tell = Callable[[float | None, str], None]
POINTS = 200_000  # of a sweep
REQUESTS = 200_000  # of a simulation
SHOWN = 2000  # requests and points of a distribution that go to the page
_BATCH = ("batch_size", "beam_width", "turns", "images", "usecase")  # words of one batch, which arrivals replace
_LENGTHS = ("input_len", "output_len", "prefix_len")
_CHOSEN = (
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


def sweep(plan: Plan, axes: Any, figures: Any = None) -> dict[str, Any]:
    """Columns of every combination; words that do not vary are ``constants``. ``figures`` names those that matter."""
    from ..sweep.grid import Grid
    from ..sweep.points import METRICS, chunks
    from ..sweep.sweep import Sweep

    axes = {n: v for n, v in axes.items() if v is not None} if isinstance(axes, Mapping) else axes
    if not isinstance(axes, Mapping) or not axes:
        raise BadValue(f'axes are words with their values such as {{"batch_size": "1:256:x2"}}, not {abbreviate(axes)}')
    for name in axes:
        if name not in WORDS:
            raise UnknownName("axis", name, WORDS)
    known(axes)
    wanted = list(METRICS) if figures is None else figures
    if not isinstance(wanted, list) or not all(isinstance(one, str) for one in wanted):
        raise BadValue(f"figures are a list of names, not {abbreviate(figures)}")
    for name in wanted:
        if name not in METRICS:
            raise UnknownName("figure", name, METRICS)
    words = {"model": plan.model, "gpu": plan.gpu, **plan.words, **axes}
    grid = Grid(**words)
    if grid.points > POINTS:
        raise BadValue(
            f"the grid has {grid.points:,} points, more than the {POINTS:,} of a page: give fewer values, "
            "or use inferometer sweep"
        )
    grid.check()
    found = Sweep(grid, chunks(grid))
    given = {name: found.columns[name] for name in found.kinds if name not in METRICS}
    same = {
        name: _plain(column[:1])[0]
        for name, column in given.items()
        if name not in (*axes, "feasible", "reason") and (column == column[0]).all()
    }
    columns = {name: _plain(column) for name, column in given.items() if name not in same}
    columns |= {name: _plain(found.columns[name]) for name in wanted}
    return {
        "schema": "inferometer.sweep/1",
        "points": len(found),
        "axes": {n: list(v) for n, v in found.axes.items()},
        "columns": columns,
        "constants": same,
        "warnings": list(found.warnings),
        "command": command("sweep", plan, axes),
    }


def _plain(column: np.ndarray) -> list[Any]:
    """A column for JSON: seven digits are more than anything here is sure of."""
    import numpy as np

    if column.dtype != float:
        return [value or None for value in column] if column.dtype == object else list(column.tolist())
    size = np.where(np.isfinite(column) & (column != 0), np.abs(column), 1.0)
    digits = 10.0 ** (6 - np.floor(np.log10(size)))
    return [None if value != value else value for value in (np.round(column * digits) / digits).tolist()]


def sensitivity(plan: Plan, words: dict[str, Any]) -> dict[str, Any]:
    """What moves the plan; words are those of the verb."""
    from ..sensitivity.sensitivity import sensitivity as looked

    names = words.get("compare")
    known({"model": names or []})
    found = looked(plan.model, plan.gpu, **{**plan.words, **words})
    asked = {name: value for name, value in words.items() if name != "curves"}
    return {**found.to_dict(), "command": command("sensitivity", plan, asked)}


def search(plan: Plan, words: dict[str, Any], trace: Path | None, tell: Tell) -> dict[str, Any]:
    """The best deployment on some GPUs. Of the plan its model, machine, precision and lengths count, not its layout."""
    from ..search.search import searched
    from ..serving.trace import read_trace

    never = ("model", "trace", "backend", "address", "jobs", "progress", "words", *_BATCH)
    allowed = [name for name in (*inspect.signature(searched).parameters, *WORDS) if name not in never]
    for name in words:
        if name not in allowed:
            raise UnknownName("word of a search", name, allowed)
    known(words)
    kept = {name: value for name, value in plan.words.items() if name not in (*_BATCH, *_CHOSEN)}
    asked = {**kept, **{name: value for name, value in words.items() if value is not None}}
    gpu = asked.pop("gpu", plan.gpu)
    if trace is not None:
        asked = {name: value for name, value in asked.items() if name not in _LENGTHS}
    found = searched(
        plan.model,
        gpu,
        trace=None if trace is None else read_trace(trace),
        progress=lambda stage, done: tell(None, f"{stage} {done:,}"),
        **asked,
    )[0]
    line = Plan(plan.model, gpu, {}, plan.label)
    return {**msgspec.to_builtins(found), "command": command("search", line, {**asked, **_file(trace)})}


# ------------------------------------------------------------------ simulations


def simulate(plan: Plan, words: dict[str, Any], trace: Path | None, tell: Tell) -> dict[str, Any]:
    """One run: the benchmark's keys, the engine over time, distributions, and some requests one by one."""
    from ..serving.arrivals import TRAFFIC_DEFAULTS, load_traffic
    from ..serving.summary import simulate_and_summarize

    said = _said(plan, words, trace)
    goals, ways, rest = _parts(said)
    ways.pop("goodput_share", None)  # of the search for a rate
    about = {key: rest.get(key, TRAFFIC_DEFAULTS[key]) for key in ("request_rate", "burstiness", "seed")}
    about["max_concurrency"] = ways.get("max_concurrency")
    requests, source = load_traffic(rest, ways.get("max_concurrency"))
    _bounded(len(requests))
    whole = len(requests)

    def reached(done: int) -> None:
        tell(done / max(whole, 1), f"{done:,} of {whole:,} requests")

    result, outcome = simulate_and_summarize(plan.model, plan.gpu, requests, source, goals, ways, rest, reached)
    return {**result, **about, **_over_time(outcome), "command": _line(plan, said, trace)}


def capacity(plan: Plan, words: dict[str, Any], trace: Path | None, tell: Tell) -> dict[str, Any]:
    """The highest rate that holds, and how the share of good requests falls with the rate."""
    from ..serving.summary import capacity_and_summarize

    said = _said(plan, words, trace)
    _bounded(said.get("num_prompts") or 1000)
    goals, ways, rest = _parts(said)
    search = {"jobs": 1, **({"share": ways.pop("goodput_share")} if "goodput_share" in ways else {})}
    found = capacity_and_summarize(
        plan.model, plan.gpu, goals, search, ways, rest, lambda done: tell(None, f"{done} rates tried")
    )
    return {**found, "command": _line(plan, {**said, "find_capacity": True}, trace)}


def _said(plan: Plan, words: dict[str, Any], trace: Path | None) -> dict[str, Any]:
    """The words of a simulation: those of the plan that are not of one batch, and those of the traffic."""
    from ..serving.arrivals import TRAFFIC_DEFAULTS
    from ..serving.simulate import simulate as verb

    own = [
        name
        for name in inspect.signature(verb).parameters
        if name not in ("model", "gpu", "trace", "progress", "words", "fast_forward")
    ]
    allowed = [*(name for name in TRAFFIC_DEFAULTS if name != "trace"), *own, "goodput", "goodput_share"]
    for name in words:
        if name not in allowed:
            raise UnknownName("word of the traffic", name, [*allowed, "find_capacity"])
    pools = words.get("pools", [])
    if not isinstance(pools, list) or not all(isinstance(pool, Mapping) for pool in pools):
        raise BadValue(f'pools are a list such as [{{"gpu": "h200", "replicas": 2}}], not {abbreviate(pools)}')
    for pool in pools:
        for name in pool:
            if name not in (*WORDS, "role", "replicas"):
                raise UnknownName("word of a pool", name, (*WORDS, "role", "replicas"))
        known(pool)
    kept = {name: value for name, value in plan.words.items() if name not in _BATCH}
    if trace is not None:
        kept = {name: value for name, value in kept.items() if name not in _LENGTHS}
    if words.get("num_prompts") is not None:
        _bounded(words["num_prompts"])
    return {**kept, **words, **({} if trace is None else {"trace": str(trace)})}


def _bounded(count: Any) -> None:
    if isinstance(count, int) and count > REQUESTS:
        raise BadValue(
            f"--num-prompts of a page goes up to {REQUESTS:,}, not {count:,}: the command line has no such limit"
        )


def _parts(said: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any], dict[str, Any]]:
    """Limits, the scheduler's words, and all others."""
    from ..serving.arrivals import TRAFFIC_DEFAULTS
    from ..serving.metrics import parse_goodput

    rest = {"frontend": "http", **said}  # where requests come from, unless said otherwise
    goals = parse_goodput(rest.pop("goodput", None) or [])
    ways = {name: rest.pop(name) for name in [*rest] if name not in WORDS and name not in TRAFFIC_DEFAULTS}
    return goals, ways, rest


def _line(plan: Plan, said: dict[str, Any], trace: Path | None) -> str:
    """The command; pools are a flag each there, which a page does not offer."""
    shown = {name: value for name, value in said.items() if name not in ("trace", "pools")}
    return command("simulate", Plan(plan.model, plan.gpu, {}, plan.label), {**shown, **_file(trace)})


def _file(trace: Path | None) -> dict[str, Any]:
    return {} if trace is None else {"trace": trace.name}


def _over_time(outcome: Outcome) -> dict[str, Any]:
    """The engine over time; latencies in order (shares of the requests below them); requests, evenly chosen."""
    import numpy as np

    from ..serving.metrics import latencies

    found = latencies(outcome)
    spread = {}
    for name, values in found.items():
        there = np.sort(values[~np.isnan(values)])
        at = np.unique(np.linspace(0, max(len(there) - 1, 0), min(SHOWN, len(there))).round().astype(int))
        spread[f"{name}_ms"] = {"value": _plain(there[at]), "share": _plain((at + 1) / max(len(there), 1))}
    count = len(outcome.arrival_s)
    some = np.unique(np.linspace(0, max(count - 1, 0), min(SHOWN, count)).round().astype(int))
    queue = (outcome.scheduled_s - outcome.arrival_s) * 1e3
    columns = {
        "arrival_s": outcome.arrival_s,
        "queue_ms": queue,
        **{f"{k}_ms": v for k, v in found.items()},
        "input_tokens": outcome.input_tokens,
        "output_tokens": outcome.output_tokens,
        "cached_tokens": outcome.cached_tokens,
        "replica": outcome.replica,
    }
    return {
        "series": {name: _plain(column) for name, column in outcome.series.items()},
        "distribution": spread,
        "requests": {"index": some.tolist(), **{name: _plain(column[some]) for name, column in columns.items()}},
    }
