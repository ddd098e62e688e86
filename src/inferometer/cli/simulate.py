"""``inferometer simulate``: requests through an engine, step by step; --find-capacity: the highest rate that holds."""

from __future__ import annotations

from typing import Any

import click

from ..base.errors import BadValue
from ..base.units import plural
from ..specs.arguments import arguments
from ..specs.command_args import (
    CapacityArgs,
    GoodputArgs,
    ServedPlanArgs,
    ServingArgs,
    SessionArgs,
    TierSizesArgs,
    TrafficArgs,
)
from .options import (
    MODEL_HELP,
    OUTPUT,
    ArgumentOption,
    Command,
    model_argument,
    named,
    one_gpu,
    options,
    output_option,
    plan_options,
    schema_options,
)
from .output import Form, emit, note, progress_bar, table_csv, wrote
from .streams import echo

_EXAMPLES = (
    "llama-3.1-8b --gpu h200 --request-rate 8 --num-prompts 200 --input-len 512 --output-len 128",
    "llama-3.1-8b --gpu h200 --trace requests.csv --goodput ttft:500,tpot:50",
    "llama-3.1-8b --gpu h200 --find-capacity --goodput ttft:500,tpot:50",
)
_SERVING = tuple(name for name in arguments(ServingArgs) if name not in arguments(ServedPlanArgs))
_CAPACITY = ("goodput_share", "backend", "backend_address", "jobs")
_FILES = ("requests_out", "sessions_out", "plot", "chrome_trace")


@click.command(cls=Command, epilog=MODEL_HELP, examples=_EXAMPLES)
@model_argument()
@options(
    schema_options(TrafficArgs),
    schema_options(SessionArgs),
    schema_options(ServingArgs, skip=arguments(ServedPlanArgs)),
)
@click.option(
    "--pool",
    "pools",
    cls=ArgumentOption,
    group="Serving",
    multiple=True,
    metavar="KEY=VALUE,…",
    help="A pool of replicas; repeat for more pools: gpu=h200,replicas=2,role=prefill,tensor_parallel_size=2.",
)
@options(
    schema_options(GoodputArgs),
    schema_options(TierSizesArgs),
    schema_options(CapacityArgs),
    plan_options(ServedPlanArgs),
)
@output_option("--requests-out", metavar="FILE", callback=named, help="Write one CSV row per request.")
@output_option("--sessions-out", metavar="FILE", callback=named, help="Write one CSV row per session.")
@output_option("--plot", metavar="DIR", callback=named, help="Write plots to DIR: the engine over time, and latencies.")
@output_option("--chrome-trace", metavar="FILE", callback=named, help="Write events for chrome://tracing or Perfetto.")
@options(OUTPUT)
def simulate(
    model: str,
    gpu: str | None,
    goodput: tuple[str, ...],
    find_capacity: bool | None,
    pools: tuple[str, ...],
    max_concurrency: int | None,
    concurrent_sessions: int | None,
    kv_offloading_sizes: str | None,
    form: Form,
    **plan: Any,
) -> int:
    """Simulate a server under load, from a trace or synthetic requests: TTFT, TPOT, ITL, E2E, throughput, goodput."""
    from ..serving.metrics import parse_goodput
    from ..serving.simulate import simulate_and_summarize
    from ..serving.traffic import load_traffic

    device, goals = one_gpu("simulate", gpu), parse_goodput(goodput)
    files = {name: plan.pop(name, None) for name in _FILES}
    plan.setdefault("frontend", arguments(ServedPlanArgs)["frontend"].default)
    serving = {name: plan.pop(name) for name in _SERVING if name in plan}
    serving |= {"max_concurrency": max_concurrency, "concurrent_sessions": concurrent_sessions}
    serving |= {"pools": [_pool(text) for text in pools] or None}
    capacity = {name: plan.pop(name) for name in _CAPACITY if name in plan}
    if find_capacity:
        _check_capacity(serving, plan, files)
        del serving["concurrent_sessions"]
        return _find_capacity(model, device, goals, capacity, plan, serving, form)
    defaults = arguments(TrafficArgs)
    header = {name: plan.get(name, defaults[name].default) for name in ("request_rate", "burstiness", "seed")}
    header["burstiness"] = header["burstiness"] if "trace" in plan else header["burstiness"] or 1.0
    traffic = load_traffic(plan, max_concurrency, concurrent_sessions)
    serving["max_concurrency"] = traffic.max_concurrency
    count = len(traffic.trace)
    if kv_offloading_sizes is not None:
        _check_sizes(plan, files)
        return _compare_sizes(model, device, kv_offloading_sizes, traffic, goals, serving, plan, header, form)
    try:
        with progress_bar("simulating", count) as reached:
            result, outcome = simulate_and_summarize(model, device, traffic, goals, serving, plan, reached)
    except KeyboardInterrupt as stop:
        return _cut(getattr(stop, "result", None), count, files["requests_out"])
    result |= {**header, "max_concurrency": traffic.max_concurrency}
    _files(outcome, result, goals, files)

    def csv() -> str:
        from ..views.files import rows_csv

        return rows_csv(outcome)

    def text() -> Any:
        from ..views.text import serving

        return serving.run(result, outcome.series)

    reason = None if result["completed"] else result["reason"] or "every request was rejected"
    emit(form, json=lambda: result, csv=csv, text=text, warnings=result["warnings"], infeasible=reason)
    return 0 if result["completed"] else 1


def _check_sizes(plan: dict[str, Any], files: dict[str, str | None]) -> None:
    """Refuse what says the size already, and files of one run."""
    for name in ("kv_offloading_size", "enable_hierarchical_cache"):
        if plan.get(name):
            raise BadValue(f"`kv_offloading_sizes` sets `kv_offloading_size`: leave out `{name}`", field=name)
    for name, value in files.items():
        if value is not None:
            raise BadValue(f"`kv_offloading_sizes` runs many simulations, but `{name}` describes one", field=name)


def _compare_sizes(
    model: str,
    gpu: str,
    sizes: str,
    traffic: Any,
    goals: dict[str, float],
    serving: dict[str, Any],
    plan: dict[str, Any],
    header: dict[str, Any],
    form: Form,
) -> int:
    """The same requests with each size of CPU memory, and what it is good for."""
    from ..serving.simulate import simulate_and_summarize
    from ..serving.tier_sizes import parse_tier_sizes, tier_size_rows, tier_sizes_sentence

    results: dict[float, dict[str, Any]] = {}
    tried = parse_tier_sizes(sizes)
    with progress_bar("simulating sizes", len(tried)) as reached:
        for size in tried:
            results[size], _ = simulate_and_summarize(
                model, gpu, traffic, goals, serving, {**plan, "kv_offloading_size": size or None}
            )
            reached(len(results))
    rows = tier_size_rows(tried, results)
    result = {**results[tried[-1]], **header, "kv_offloading_sizes": rows, "summary": tier_sizes_sentence(rows)}

    def text() -> Any:
        from ..views.text.serving import tier_sizes

        return tier_sizes(result)

    reason = None if result["completed"] else result["reason"] or "every request was rejected"
    emit(
        form,
        json=lambda: result,
        csv=lambda: table_csv(rows),
        text=text,
        warnings=result["warnings"],
        infeasible=reason,
    )
    return 0 if result["completed"] else 1


def _check_capacity(serving: dict[str, Any], plan: dict[str, Any], files: dict[str, str | None]) -> None:
    """Refuse what a search for a rate has no use for: what says the load already, and files of one run."""
    if serving.get("autoscale") is not None:
        raise BadValue("`find_capacity` needs a fixed number of replicas: leave out `autoscale`", field="autoscale")
    if any({**plan, **serving}.get(name) is not None for name in arguments(SessionArgs)):
        raise BadValue("`find_capacity` takes requests that wait for no others: leave out sessions", field="agents")
    for name, value in files.items():
        if value is not None:
            raise BadValue(
                f"`find_capacity` runs many simulations, but `{name}` describes one: leave it out", field=name
            )


def _find_capacity(
    model: str,
    gpu: str,
    goals: dict[str, float],
    capacity: dict[str, Any],
    plan: dict[str, Any],
    serving: dict[str, Any],
    form: Form,
) -> int:
    """Search, then serve the requests once more at the highest rate that holds, and show both."""
    from ..serving.capacity import capacity_and_summarize

    renamed = {"goodput_share": "share", "backend_address": "address"}
    search = {renamed.get(name, name): value for name, value in capacity.items()}
    with progress_bar("trying rates", None, "rates") as reached:
        result = capacity_and_summarize(model, gpu, goals, search, serving, plan, reached)
    cut = result["interrupted"]
    if cut:
        echo(f"interrupted: {plural(len(result['tried']), 'rate')} tried, search not finished", err=True)

    def csv() -> str:
        return table_csv(result["tried"] or [{"request_rate": "", "good": "", "holds": ""}])

    def text() -> Any:
        from ..views.text.serving import capacity as table

        return table(result)

    emit(form, json=lambda: result, csv=csv, text=text, warnings=result["warnings"])
    return 130 if cut else 0 if result["request_rate"] else 1


def _cut(outcome: Any, total: int, path: str | None) -> int:
    """Interrupted: what had ended by then is kept where rows are written."""
    from ..views.files import rows_csv, write

    done = int(outcome.done.sum()) if outcome is not None else 0
    rows = "nothing was written"
    if done and path is not None:
        rows = f"their rows are in {write(path, rows_csv(outcome, done=True))}"
    echo(f"interrupted: {done:,} of {total:,} requests had ended; {rows}", err=True)
    return 130


def _files(outcome: Any, result: dict[str, Any], goals: dict[str, float], files: dict[str, str | None]) -> None:
    """Rows, pictures and events, each where its flag was given."""
    from ..views.files import write

    written: list[Any] = []
    if files["requests_out"] is not None:
        from ..views.files import rows_csv

        written.append(write(files["requests_out"], rows_csv(outcome)))
    if files["sessions_out"] is not None:
        from ..views.files import sessions_csv

        if outcome.sessions is None:
            raise BadValue(
                "`sessions_out` needs sessions: a trace with `session_id`, or `agents`", field="sessions_out"
            )
        written.append(write(files["sessions_out"], sessions_csv(outcome)))
    if files["chrome_trace"] is not None:
        from ..views.files import MAX_EVENTS, chrome_trace

        written.append(write(files["chrome_trace"], chrome_trace(outcome)))
        if len(outcome.arrival_s) > MAX_EVENTS:
            note(f"the chrome trace shows the first {MAX_EVENTS:,} requests")
    if files["plot"] is not None and result["completed"]:
        from ..views.plots.timeline import write_timeline
        from ..views.text.serving import header

        written += write_timeline(outcome, files["plot"], header(result), goals)
    wrote(written)


def _pool(text: str) -> dict[str, Any]:
    """``gpu=h200,replicas=2`` as arguments: numbers are numbers, everything else is text."""
    pool: dict[str, Any] = {}
    for piece in text.split(","):
        key, sign, value = piece.partition("=")
        if not sign or not key.strip():
            raise BadValue(f"--pool takes pairs such as gpu=h200,replicas=2, not {text!r}")
        pool[key.strip().replace("-", "_")] = _value(value.strip())
    return pool


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
