"""``inferometer bench``: drive a live server, and compare it with the prediction."""

from __future__ import annotations

import time
from typing import Any

import click

from ..base.errors import BadValue, UnknownName, check_positive
from ..serving.synthetic import load_traffic
from .options import ENGINE, LIVE, METHODS, NUMBERS, OUTPUT, TRAFFIC, named, one_gpu, options
from .output import deliver, show_rich

SAVE_EVERY = 5.0  # s between two writings of the rows so far
LATE = 0.01  # s: a client that sends later than this is too slow for the rate
_WAYS = ("api", "prompt_text", "api_key", "timeout", "extra_body", "served_model_name")


@click.command()
@click.option("--base-url", required=True, help="Where the server listens: http://localhost:8000.")
@click.option("--model", required=True, help="What it serves, by its catalogue name or Hugging Face id.")
@click.option("--served-model-name", help="The name that the server knows the model by.  [default: --model]")
@click.option("--api", default="completions", help="completions (prompts as token ids), or chat (prompts as text).")
@click.option("--prompt-text", is_flag=True, help="Send words to completions, too: for servers that take no token ids.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="For servers that want one; OPENAI_API_KEY works too.")
@click.option("--timeout", type=float, default=600.0, help="Seconds to wait for one whole answer.")
@click.option("--extra-body", metavar="JSON", help='More keys of every request: {"top_p": 0.9}; null takes one away.')
@options(TRAFFIC)
@click.option("--goodput", multiple=True, metavar="METRIC:MS", help="What a good request keeps: ttft:500,tpot:50.")
@click.option("--requests-out", metavar="FILE", callback=named, help="One CSV row per request, as validate takes it.")
@options(LIVE, METHODS, NUMBERS, ENGINE, OUTPUT)
def bench(
    base_url: str,
    model: str,
    goodput: tuple[str, ...],
    requests_out: str | None,
    gpu: str | None,
    max_concurrency: int | None,
    as_json: bool,
    as_csv: bool,
    output: str | None,
    **words: Any,
) -> int:
    """Measure a live OpenAI-compatible server: requests open or closed loop, every token timed."""
    from ..serving.metrics import parse_goodput

    ways = {key: words.pop(key) for key in _WAYS}
    goals, seed = parse_goodput(goodput), words["seed"]
    traffic = load_traffic(words, max_concurrency)
    trace = traffic.trace
    if gpu is not None:  # what would be refused later is refused now, not after an hour of measuring
        _asked(model, gpu, words)
    replies, cut = _driven(base_url, model, ways, trace, max_concurrency, seed, requests_out)
    about = {
        "model": model,
        "base_url": base_url,
        "traffic": traffic.label,
        "max_concurrency": max_concurrency,
        "seed": seed,
    }
    result, outcome = _summed(trace, replies, cut, goals, about)
    compared = None
    if gpu is not None and result["completed"]:
        compared = _predicted(trace, outcome, model, max_concurrency, gpu, words)
    if requests_out is not None:
        click.echo(f"wrote {_save(trace, replies, requests_out)}", err=True)
    if as_json:
        import msgspec

        if compared is not None:
            result["predicted"] = {"gpu": gpu, "errors": msgspec.to_builtins(compared.errors)}
        deliver(msgspec.json.format(msgspec.json.encode(result), indent=1), output)
    elif as_csv:
        from ..views.files import rows_csv

        deliver(rows_csv(outcome), output)
    else:
        from ..views.text.validation import benchmark

        show_rich(benchmark(result, gpu or "", compared), output)
    for warning in result["warnings"] if as_json or as_csv else ():
        click.echo(f"warning: {warning}", err=True)
    return 130 if cut else 0 if result["completed"] else 1


def _driven(
    base_url: str, model: str, ways: dict[str, Any], trace: Any, limit: int | None, seed: int, path: str | None
) -> tuple[list[Any], bool]:
    """Send everything; the replies, and whether the run was cut short. What came is saved every few seconds."""
    import asyncio

    from ..bench.load_generator import APIS, BenchTarget, LoadGenerator
    from ..bench.trace_replay import planned_requests
    from ..views.progress import progress_bar

    if ways["api"] not in APIS:
        raise UnknownName("--api", ways["api"], APIS)
    check_positive("--timeout", ways["timeout"], 1e6)
    headers = {"Authorization": f"Bearer {ways['api_key']}"} if ways["api_key"] else {}
    server = BenchTarget(
        base_url, ways["served_model_name"] or model, ways["api"], ways["timeout"], headers, _extra(ways["extra_body"])
    )
    text = ways["api"] == "chat" or ways["prompt_text"]
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

        run = LoadGenerator(server, todo, limit, count)
        try:
            asyncio.run(run.drive())
        except KeyboardInterrupt:
            cut = True
    return run.replies, cut


def _summed(
    trace: Any, replies: list[Any], cut: bool, goals: dict[str, float], about: dict[str, Any]
) -> tuple[dict[str, Any], Any]:
    import numpy as np

    from ..bench.trace_replay import outcome_of_replies
    from ..serving.metrics import metrics

    outcome = outcome_of_replies(trace, replies)
    gaps = np.array([gap * 1e3 for reply in replies if reply is not None for gap in reply.gaps])
    found = metrics(outcome, goals, gaps)
    found["failed"] += found.pop("rejected")
    errors: dict[str, int] = {}
    for reply in replies:
        if reply is not None and reply.error:
            errors[reply.error] = errors.get(reply.error, 0) + 1
    result = {
        "schema": "inferometer.bench/1",
        **about,
        "num_prompts": len(trace),
        **found,
        "goodput": goals or None,
        "errors": errors,
        "warnings": _warnings(replies, cut),
    }
    return result, outcome


def _save(trace: Any, replies: list[Any], path: str) -> Any:
    from ..bench.trace_replay import outcome_of_replies
    from ..views.files import rows_csv, write

    return write(path, rows_csv(outcome_of_replies(trace, replies)))


def _warnings(replies: list[Any], cut: bool) -> list[str]:
    found = [f"interrupted: {sum(r is None for r in replies):,} requests were not answered"] if cut else []
    late = sorted(reply.late for reply in replies if reply is not None)
    worst = late[int(0.99 * (len(late) - 1))] if late else 0.0
    if worst > LATE:
        found.append(
            f"the client itself was late: 1% of the requests were sent {worst * 1e3:,.0f} ms or more after "
            "they were due; send at a lower rate, or from a faster machine"
        )
    return found


def _predicted(trace: Any, outcome: Any, model: str, limit: int | None, gpu: str, words: dict[str, Any]) -> Any:
    """The same requests in the simulation: as they were sent, or in a closed loop of the same width."""
    from ..bench.trace_replay import measured_trace
    from ..validation.validate import validate

    closed = trace.arrival_s is None or (limit is not None and not trace.arrival_s.any())
    seen = measured_trace(trace, outcome, closed)
    return validate(model, gpu, measured=seen, max_concurrency=limit if closed else None, **words)


def _asked(model: str, gpu: str, words: dict[str, Any]) -> None:
    from ..inference.request import build_request

    build_request(model, one_gpu("bench", gpu), **words)


def _extra(text: str | None) -> dict[str, Any]:
    import msgspec

    if text is None:
        return {}
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise BadValue(f"--extra-body is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadValue(f"--extra-body must be a JSON object, not {text[:60]!r}")
    return found


def _vocabulary(model: str) -> int | None:
    """How many token ids the model has, if the catalogue knows it."""
    from ..specs.catalog import catalog_entry

    entry = catalog_entry(model)
    size = entry.config.get("vocab_size") if entry is not None else None
    return size if isinstance(size, int) else None
