"""``inferometer simulate --find-capacity``: the highest rate at which what was promised holds."""

from __future__ import annotations

from typing import Any

import click

from ..base.errors import BadValue
from ..serving.synthetic import load_traffic
from ..views.progress import progress_bar
from .options import ENGINE, METHODS, MODEL_HELP, NUMBERS, OUTPUT, SERVER, TRAFFIC, named, one_gpu, options
from .output import deliver, show_rich, table_csv


def capacity(
    model: str,
    gpu: str,
    goals: dict[str, float],
    ways: dict[str, Any],
    words: dict[str, Any],
    served: dict[str, Any],
    form: tuple[bool, bool, str | None],
) -> int:
    """Search, then serve the requests once more at the rate that was found, and show both."""
    import msgspec

    from ..serving.capacity import capacity_and_summarize

    search = {"share": ways["goodput_share"], "address": ways["backend_address"]}
    search |= {key: ways[key] for key in ("jobs", "backend")}
    with progress_bar("trying rates", None, "rates") as reached:
        result = capacity_and_summarize(model, gpu, goals, search, served, words, reached)
    cut = result["interrupted"]
    if cut:
        click.echo(f"interrupted: {len(result['tried']):,} rates were tried, and the search was not over", err=True)
    as_json, as_csv, output = form
    if as_json:
        deliver(msgspec.json.format(msgspec.json.encode(result), indent=1), output)
    elif as_csv:
        deliver(table_csv(result["tried"] or [{"request_rate": "", "good": "", "holds": ""}]), output)
    else:
        from ..views.text.serving import capacity as table

        show_rich(table(result), output)
    return 130 if cut else 0 if result["request_rate"] else 1


# ------------------------------------------------------------------ simulate
# ``inferometer simulate``: requests through an engine, step by step.


SERVING = [
    click.option("--scheduler", help="vllm, sarathi, prefill_first, trtllm or static.  [default: the engine's]"),
    click.option("--policy", default="fcfs", help="Who comes first: fcfs, or priority (a column of the trace)."),
    click.option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        default=None,
        help="Keep the cache of prompts for those that begin alike.  [default: the engine's]",
    ),
    click.option("--long-prefill-token-threshold", type=int, default=0, help="Longest piece of a prompt; 0: no limit."),
    click.option(
        "--scheduler-recv-interval",
        type=int,
        default=1,
        help="Steps of an engine that answers from one look at new requests to the next (SGLang).",
    ),
    click.option(
        "--batch-wait-timeout-iters",
        type=int,
        default=0,
        help="Steps that prompts are held back for company while others answer (TensorRT-LLM).",
    ),
    click.option(
        "--batch-wait-max-tokens-ratio",
        type=float,
        default=0.0,
        help="Share of the token budget that is company enough.",
    ),
    click.option("--num-gpu-blocks-override", type=int, help="KV blocks of a replica.  [default: what fits]"),
    click.option(
        "--router",
        default="round_robin",
        help="Which replica (-dp) gets a request: round_robin, least_loaded, prefix_aware.",
    ),
    click.option("--prefill-replicas", type=int, help="Read prompts on replicas of their own: so many of them."),
    click.option("--decode-replicas", type=int, help="Write answers on replicas of their own: so many of them."),
    click.option(
        "--pool",
        "pools",
        multiple=True,
        metavar="KEY=VALUE,…",
        help="Replicas that differ, one flag each: gpu=h200,replicas=2,role=prefill,tensor_parallel_size=2.",
    ),
]
RESULTS = [
    click.option("--goodput", multiple=True, metavar="METRIC:MS", help="What a good request keeps: ttft:500,tpot:50."),
    click.option("--find-capacity", is_flag=True, help="Find the highest --request-rate at which --goodput holds."),
    click.option("--goodput-share", type=float, default=0.9, help="Of the requests that must keep the limits then."),
    click.option("--backend", default="processes", help="Where its simulations run: processes, dask or ray."),
    click.option("--backend-address", help="A Dask or Ray cluster to use.  [default: one on this machine]"),
    click.option("--jobs", type=int, help="Its simulations at a time.  [default: one per core]"),
    click.option("--requests-out", metavar="FILE", callback=named, help="One CSV row per request."),
    click.option("--plot", metavar="DIR", callback=named, help="Write the engine over time, and latencies, there."),
    click.option("--chrome-trace", metavar="FILE", callback=named, help="Events for chrome://tracing or Perfetto."),
]
_SERVED = (
    "scheduler",
    "policy",
    "enable_prefix_caching",
    "long_prefill_token_threshold",
    "scheduler_recv_interval",
    "batch_wait_timeout_iters",
    "batch_wait_max_tokens_ratio",
    "num_gpu_blocks_override",
    "router",
    "prefill_replicas",
    "decode_replicas",
)


@click.command(epilog=MODEL_HELP)
@click.argument("model")
@options(TRAFFIC, SERVING, RESULTS, SERVER, METHODS, NUMBERS, ENGINE, OUTPUT)
def simulate(
    model: str,
    gpu: str,
    goodput: tuple[str, ...],
    find_capacity: bool,
    pools: tuple[str, ...],
    max_concurrency: int | None,
    as_json: bool,
    as_csv: bool,
    output: str | None,
    **words: Any,
) -> int:
    """Serve a trace, or requests made up, and say what every request and the whole run come to."""
    from ..serving.metrics import parse_goodput
    from ..serving.simulate import simulate_and_summarize

    device, goals = one_gpu("simulate", gpu), parse_goodput(goodput)
    files = {key: words.pop(key) for key in ("requests_out", "plot", "chrome_trace")}
    served = {key: words.pop(key) for key in _SERVED}
    served |= {"max_concurrency": max_concurrency, "pools": [_pool(text) for text in pools] or None}
    search = {key: words.pop(key) for key in ("goodput_share", "backend", "backend_address", "jobs")}
    if find_capacity:
        # merged

        for key, value in files.items():
            if value is not None:
                raise BadValue(f"--find-capacity runs many simulations: --{key.replace('_', '-')} is of one")
        return capacity(model, device, goals, search, words, served, (as_json, as_csv, output))
    about = {key: words[key] for key in ("request_rate", "burstiness", "seed")}
    traffic = load_traffic(words, max_concurrency)
    count = len(traffic.trace)
    try:
        with progress_bar("simulating", count) as reached:
            result, outcome = simulate_and_summarize(model, device, traffic, goals, served, words, reached)
    except KeyboardInterrupt as stop:
        return _cut(getattr(stop, "result", None), count, files["requests_out"])
    result |= {**about, "max_concurrency": max_concurrency}
    _files(outcome, result, goals, files)
    if as_json:
        import msgspec

        deliver(msgspec.json.format(msgspec.json.encode(result), indent=1), output)
    elif as_csv:
        from ..views.files import rows_csv

        deliver(rows_csv(outcome), output)
    else:
        from ..views.text import serving

        show_rich(serving.run(result, outcome.series), output)
    if as_json or as_csv:
        for warning in result["warnings"]:
            click.echo(f"warning: {warning}", err=True)
        if not result["completed"]:
            click.echo(f"infeasible: {result['reason'] or 'every request was rejected'}", err=True)
    return 0 if result["completed"] else 1


def _cut(outcome: Any, asked: int, path: str | None) -> int:
    """Interrupted: what had ended by then is kept where rows were asked for."""
    from ..views.files import rows_csv, write

    done = int(outcome.done.sum()) if outcome is not None else 0
    kept = "nothing was written"
    if done and path is not None:
        kept = f"their rows are in {write(path, rows_csv(outcome, done=True))}"
    click.echo(f"interrupted: {done:,} of {asked:,} requests had ended; {kept}", err=True)
    return 130


def _files(outcome: Any, result: dict[str, Any], goals: dict[str, float], files: dict[str, str | None]) -> None:
    """Rows, pictures and events, each where it was asked for."""
    from ..views.files import write

    made: list[Any] = []
    if files["requests_out"] is not None:
        from ..views.files import rows_csv

        made.append(write(files["requests_out"], rows_csv(outcome)))
    if files["chrome_trace"] is not None:
        from ..views.files import MAX_EVENTS, chrome_trace

        made.append(write(files["chrome_trace"], chrome_trace(outcome)))
        if len(outcome.arrival_s) > MAX_EVENTS:
            click.echo(f"the chrome trace shows the first {MAX_EVENTS:,} requests", err=True)
    if files["plot"] is not None and result["completed"]:
        from ..views.plots.timeline import write_timeline
        from ..views.text.serving import header

        made += write_timeline(outcome, files["plot"], header(result), goals)
    for path in made:
        click.echo(f"wrote {path}", err=True)


def _pool(text: str) -> dict[str, Any]:
    """``gpu=h200,replicas=2``: words are words, numbers are numbers."""
    found: dict[str, Any] = {}
    for piece in text.split(","):
        key, sign, value = piece.partition("=")
        if not sign or not key.strip():
            raise BadValue(f"--pool takes pairs such as gpu=h200,replicas=2, not {text!r}")
        found[key.strip().replace("-", "_")] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
