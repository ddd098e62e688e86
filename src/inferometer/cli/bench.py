"""``inferometer bench``: drive a live server, and compare it with the prediction."""

from __future__ import annotations

import time
from typing import Any

import click

from ..base.errors import BadValue, UnknownName, check_positive
from ..base.units import plural
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
LATE = 0.01  # s: a client that sends later than this is too slow for the rate
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
    help="Where the server listens: http://localhost:8000.",
)
@click.option(
    "--model",
    cls=ArgumentOption,
    group="Server",
    required=True,
    help="What it serves, by its catalogue name or Hugging Face id.",
)
@click.option(
    "--api-key",
    cls=ArgumentOption,
    group="Server",
    envvar="OPENAI_API_KEY",
    help="For servers that want one; OPENAI_API_KEY works too.",
)
@options(
    schema_options(BenchArgs), schema_options(TrafficArgs), schema_options(GoodputArgs), plan_options(ServedPlanArgs)
)
@output_option("--requests-out", metavar="FILE", callback=named, help="One CSV row per request, as validate takes it.")
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
    """Measure a live OpenAI-compatible server: requests open or closed loop, every token timed.

    With --gpu it is also held against what is predicted for that machine.
    """
    from ..serving.metrics import parse_goodput
    from ..serving.synthetic import load_traffic

    server = checked(BenchArgs, {name: plan.pop(name) for name in arguments(BenchArgs) if name in plan})
    goals, seed = parse_goodput(goodput), plan.get("seed", arguments(TrafficArgs)["seed"].default)
    plan.setdefault("frontend", "http")
    rate = plan.get("request_rate")
    traffic = load_traffic(plan, max_concurrency)
    trace, max_concurrency = traffic.trace, traffic.max_concurrency
    if gpu is not None:  # what would be refused later is refused now, not after an hour of measuring
        _check_plan(model, gpu, plan)
    replies, cut = _driven(base_url, model, server, api_key, trace, max_concurrency, seed, requests_out)
    header = {
        "model": model,
        "base_url": base_url,
        "traffic": traffic.label,
        "request_rate": rate,
        "max_concurrency": max_concurrency,
        "seed": seed,
    }
    result, outcome = _summed(trace, replies, cut, goals, header)
    compared = None
    if gpu is not None and result["completed"]:
        compared = _predicted(trace, outcome, model, max_concurrency, gpu, plan)
        result["predicted"] = {"gpu": gpu, "errors": compared.errors}
    if requests_out is not None:
        wrote([_save(trace, replies, requests_out)])

    def csv() -> str:
        from ..views.files import rows_csv

        return rows_csv(outcome)

    def text() -> Any:
        from ..views.text.validation import benchmark

        return benchmark(result, gpu or "", compared)

    emit(form, json=lambda: result, csv=csv, text=text, warnings=result["warnings"])
    return 130 if cut else 0 if result["completed"] else 1


def _driven(
    base_url: str,
    model: str,
    server: BenchArgs,
    api_key: str | None,
    trace: Any,
    limit: int | None,
    seed: int,
    path: str | None,
) -> tuple[list[Any], bool]:
    """Send everything; the replies, and whether the run was cut short. What came is saved every few seconds."""
    import asyncio

    from ..bench.load_generator import APIS, BenchTarget, LoadGenerator
    from ..bench.trace_replay import planned_requests

    if server.api not in APIS:
        raise UnknownName("`api`", server.api, APIS)
    check_positive("timeout", server.timeout, 1e6)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    name = server.served_model_name or model
    target = BenchTarget(base_url, name, server.api, server.timeout, headers, _extra(server.extra_body))
    text = server.api == "chat" or server.prompt_text
    todo = planned_requests(trace, text=text, vocabulary=_vocabulary(model), seed=seed)
    done, saved, cut = 0, time.monotonic(), False
    with progress_bar("measuring", len(todo)) as reached:

        def count(reply: Any) -> None:
            nonlocal done, saved
            done += 1
            reached(done)
            if path is not None and time.monotonic() - saved > SAVE_EVERY:
                _save(trace, run.replies, path)
                saved = time.monotonic()

        run = LoadGenerator(target, todo, limit, count)
        try:
            asyncio.run(run.drive())
        except KeyboardInterrupt:
            cut = True
    return run.replies, cut


def _summed(
    trace: Any, replies: list[Any], cut: bool, goals: dict[str, float], header: dict[str, Any]
) -> tuple[dict[str, Any], Any]:
    import numpy as np

    from ..bench.trace_replay import outcome_of_replies
    from ..serving.metrics import metrics

    outcome = outcome_of_replies(trace, replies)
    gaps = np.array([gap * 1e3 for reply in replies if reply is not None for gap in reply.gaps])
    summary = metrics(outcome, goals, gaps)
    summary["failed"] += summary.pop("rejected")
    errors: dict[str, int] = {}
    for reply in replies:
        if reply is not None and reply.error:
            errors[reply.error] = errors.get(reply.error, 0) + 1
    result = {
        "schema": "inferometer.bench/1",
        **header,
        "num_prompts": len(trace),
        **summary,
        "goodput": goals or None,
        "errors": errors,
        "warnings": [*trace.notes, *_warnings(replies, cut)],
    }
    return result, outcome


def _save(trace: Any, replies: list[Any], path: str) -> Any:
    from ..bench.trace_replay import outcome_of_replies
    from ..views.files import rows_csv, write

    return write(path, rows_csv(outcome_of_replies(trace, replies)))


def _warnings(replies: list[Any], cut: bool) -> list[str]:
    warnings = [f"interrupted: {plural(sum(r is None for r in replies), 'request')} without an answer"] if cut else []
    late = sorted(reply.late for reply in replies if reply is not None)
    worst = late[int(0.99 * (len(late) - 1))] if late else 0.0
    if worst > LATE:
        warnings.append(
            f"the client itself was late: 1% of the requests were sent {worst * 1e3:,.0f} ms or more after "
            "they were due; send at a lower rate, or from a faster machine"
        )
    return warnings


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
