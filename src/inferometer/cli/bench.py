"""``inferometer bench``: drive a live server, and compare it with the prediction."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import click

from ..base.errors import BadValue, UnknownName, check_positive
from ..specs.arguments import arguments, checked
from ..specs.command_args import BenchArgs, GoodputArgs, ServedPlanArgs, TrafficArgs
from .options import (
    OUTPUT,
    ArgumentOption,
    Command,
    named,
    one_gpu,
    options,
    output_option,
    plan_options,
    schema_options,
)
from .output import Form, emit, progress_bar, wrote

SAVE_EVERY = 5.0  # s between two writings of the rows so far
SAVE_SHARE = 100.0  # times as long as a writing took is there none
_EXAMPLES = (
    "--base-url http://localhost:8000 --model llama-3.1-8b --request-rate 4 --num-prompts 100 --requests-out rows.csv",
    "--base-url http://localhost:8000 --model llama-3.1-8b --max-concurrency 16 --gpu h200",
)


@click.command(cls=Command, examples=_EXAMPLES)
@click.option(
    "--base-url",
    cls=ArgumentOption,
    group="Server",
    required=True,
    help="Address of the server: http://localhost:8000.",
)
@click.option(
    "--model",
    cls=ArgumentOption,
    group="Server",
    required=True,
    help="Model that it serves: catalogue name or Hugging Face id.",
)
@click.option(
    "--api-key",
    cls=ArgumentOption,
    group="Server",
    envvar="OPENAI_API_KEY",
    secret=True,
    help="API key, if the server requires one; or set OPENAI_API_KEY.",
)
@options(
    schema_options(BenchArgs), schema_options(TrafficArgs), schema_options(GoodputArgs), plan_options(ServedPlanArgs)
)
@output_option(
    "--requests-out", metavar="FILE", callback=named, help="Write one CSV row per request, for validate --measured."
)
@options(OUTPUT)
def bench(
    base_url: str,
    model: str,
    api_key: str | None,
    goodput: tuple[str, ...],
    requests_out: str | None,
    gpu: str | None,
    max_concurrency: int | None,
    form: Form,
    **plan: Any,
) -> int:
    """Measure a live OpenAI-compatible server, open or closed loop; every token is timed.

    With --gpu, the result is also compared with the prediction for that machine.
    """
    from ..serving.metrics import parse_goodput

    server = checked(BenchArgs, {name: plan.pop(name) for name in arguments(BenchArgs) if name in plan})
    goals, seed = parse_goodput(goodput), plan.get("seed", arguments(TrafficArgs)["seed"].default)
    plan.setdefault("frontend", "http")
    load = _load(server, plan, max_concurrency, seed)
    trace, max_concurrency = load.trace, load.max_concurrency
    if gpu is not None:  # what would be refused later is refused now, not after an hour of measuring
        _check_plan(model, gpu, plan)
    run, cut = _driven(base_url, model, server, api_key, load, seed, requests_out)
    header = {
        "schema": "inferometer.bench/1",
        "model": model,
        "base_url": base_url,
        "traffic": load.label,
        "seed": seed,
        **_load_keys(load, server, model),
    }
    result, outcome = _summed(load, run, cut, goals, header, server)
    compared = None
    if gpu is not None and result["completed"]:
        compared = _predicted(trace, outcome, model, max_concurrency, gpu, plan)
        result["predicted"] = {"gpu": gpu, "errors": compared.errors}
    if requests_out is not None:
        wrote([_save(trace, run.replies, requests_out)])

    def csv() -> str:
        from ..views.files import rows_csv

        return rows_csv(outcome)

    def text() -> Any:
        from ..views.text.validation import benchmark

        return benchmark(result, gpu or "", compared)

    emit(form, json=lambda: result, csv=csv, text=text, warnings=result["warnings"])
    return 130 if cut else 0 if result["completed"] else 1


class _Load(NamedTuple):
    """The requests to send, and what their result says of them."""

    trace: Any
    label: str
    max_concurrency: int | None
    request_rate: float  # inf: at once, or as the answers come
    burstiness: float
    ramp_up: Any
    percentiles: tuple[float, ...]
    percentile_metrics: tuple[str, ...]


def _load(server: BenchArgs, plan: dict[str, Any], max_concurrency: int | None, seed: int) -> _Load:
    """Requests from the flags or a file; takes what is about them out of ``plan``, and refuses what cannot be."""
    from ..bench.bench_result import parse_percentile_metrics, parse_percentiles
    from ..bench.trace_replay import parse_ramp_up
    from ..serving.synthetic import own_rate
    from ..serving.traffic import load_traffic

    rate, burstiness = plan.get("request_rate"), plan.get("burstiness") or 1.0
    ramp_up = parse_ramp_up(server.ramp_up_strategy, server.ramp_up_start_rps, server.ramp_up_end_rps)
    if ramp_up is not None and rate is not None:
        raise BadValue("`request_rate` and `ramp_up_strategy` both set the rate: give only one")
    traffic = load_traffic(plan, max_concurrency)
    trace, label = traffic.trace, traffic.label
    if ramp_up is not None:
        if trace.after is not None:
            raise BadValue("`ramp_up_strategy` needs independent requests: leave out `turns` and `max_concurrency`")
        trace = ramp_up.of(trace, burstiness, seed)
        label = f"{traffic.lengths}, {ramp_up.start_rps:g} to {ramp_up.end_rps:g}/s ({ramp_up.strategy})"
    alone = trace.arrival_s is None and traffic.max_concurrency is None  # one after another
    return _Load(
        trace=trace,
        label=label,
        max_concurrency=1 if alone else traffic.max_concurrency,
        request_rate=rate or ((None if ramp_up or alone else own_rate(trace)) or math.inf),
        burstiness=burstiness,
        ramp_up=ramp_up,
        percentiles=parse_percentiles(server.metric_percentiles),
        percentile_metrics=parse_percentile_metrics(server.percentile_metrics),
    )


def _load_keys(load: _Load, server: BenchArgs, model: str) -> dict[str, Any]:
    from datetime import datetime

    from ..bench.bench_result import load_keys

    return load_keys(
        now=datetime.now(),
        model=server.served_model_name or model,
        api=server.api,
        label=server.label,
        num_prompts=len(load.trace),
        request_rate=load.request_rate,
        burstiness=load.burstiness,
        max_concurrency=load.max_concurrency,
        ramp_up=load.ramp_up,
    )


def _driven(
    base_url: str,
    model: str,
    server: BenchArgs,
    api_key: str | None,
    load: _Load,
    seed: int,
    path: str | None,
) -> tuple[Any, bool]:
    """Send everything; the load generator, and whether the run was cut short. What came is saved every few seconds."""
    import asyncio

    from ..bench.http_stream import bearer
    from ..bench.load_generator import APIS, BenchTarget, LoadGenerator
    from ..bench.trace_replay import planned_requests, warm_ups

    if server.api not in APIS:
        raise UnknownName("`api`", server.api, APIS)
    check_positive("timeout", server.timeout, 1e6)
    headers = bearer(api_key)
    name = server.served_model_name or model
    target = BenchTarget(base_url, name, server.api, server.timeout, headers, _extra(server.extra_body))
    prompts: dict[str, Any] = {"text": server.api == "chat" or server.prompt_text, "vocabulary": _vocabulary(model)}
    todo = planned_requests(load.trace, seed=seed, **prompts)
    before = warm_ups(load.trace, server.num_warmups, seed=seed, **prompts)
    done, next_save, cut = 0, time.monotonic() + SAVE_EVERY, False
    with progress_bar("measuring", len(todo)) as reached:

        def count(reply: Any) -> None:
            nonlocal done, next_save
            done += 1
            reached(done)
            if path is not None and time.monotonic() > next_save:
                began = time.monotonic()
                _save(load.trace, run.replies, path)
                took = time.monotonic() - began  # in which no token is timed: it must stay rare
                next_save = began + max(SAVE_EVERY, SAVE_SHARE * took)

        run = LoadGenerator(target, todo, load.max_concurrency, count, before)
        try:
            asyncio.run(run.drive())
        except KeyboardInterrupt:
            cut = True
    return run, cut


def _summed(
    load: _Load, run: Any, cut: bool, goals: dict[str, float], header: dict[str, Any], server: BenchArgs
) -> tuple[dict[str, Any], Any]:
    """The whole result, and the outcome behind it."""
    from datetime import datetime, timedelta

    from ..bench.bench_result import details, rate_changes, run_warnings, summed

    summary, outcome = summed(load.trace, run.replies, goals, load.percentiles, load.percentile_metrics)
    extra = _extra(server.extra_body)
    fixed = extra.get("ignore_eos", True) is True and not {"max_tokens", "max_completion_tokens"} & extra.keys()
    wanted = load.trace.output_tokens.tolist() if fixed else None
    result = {**header, **summary, "goodput": goals or None}
    if server.save_detailed:
        result |= details(run.replies)
    if load.ramp_up is not None:
        began = datetime.now() - timedelta(seconds=time.perf_counter() - run.start)
        result["rps_change_events"] = rate_changes(load.ramp_up, load.trace, began)
    warnings = [*load.trace.notes, *([run.failed_warmups] if run.failed_warmups else [])]
    result["warnings"] = [*warnings, *run_warnings(run.replies, wanted, cut, run.lags)]
    return result, outcome


def _save(trace: Any, replies: list[Any], path: str) -> Any:
    from ..bench.trace_replay import outcome_of_replies
    from ..views.files import rows_csv, write

    return write(path, rows_csv(outcome_of_replies(trace, replies)))


def _predicted(trace: Any, outcome: Any, model: str, limit: int | None, gpu: str, plan: dict[str, Any]) -> Any:
    """The same requests in the simulation: as they were sent, or in a closed loop of the same width."""
    from ..bench.trace_replay import measured_trace
    from ..validation.validate import validate

    closed = trace.arrival_s is None or (limit is not None and not trace.arrival_s.any())
    seen = measured_trace(trace, outcome, closed)
    return validate(model, gpu, measured=seen, max_concurrency=limit if closed else None, **plan)


def _check_plan(model: str, gpu: str, plan: dict[str, Any]) -> None:
    from ..inference.request import build_request

    build_request(model, one_gpu("bench", gpu), **plan)


def _extra(text: str | None) -> dict[str, Any]:
    import msgspec

    if text is None:
        return {}
    try:
        body = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise BadValue(f"`extra_body` is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadValue(f"`extra_body` must be a JSON object, not {text[:60]!r}")
    return body


def _vocabulary(model: str) -> int | None:
    """How many token ids the model has, if the catalogue knows it."""
    from ..specs.catalog import catalog_entry

    entry = catalog_entry(model)
    size = entry.config.get("vocab_size") if entry is not None else None
    return size if isinstance(size, int) else None
