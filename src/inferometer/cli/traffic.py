"""Where requests come from: a trace, or made up. The flags of ``simulate`` and ``bench``, and what they mean."""

from __future__ import annotations

from typing import Any

import click

from ..errors import BadValue, whole

_LENGTH = "a number, or how it varies: uniform:min=…,max=… lognormal:mean=…,std=… zipf:a=…,min=…,max=…"
TRAFFIC = [
    click.option("--trace", metavar="FILE", help="Requests as CSV or JSON lines: ours, Azure, Mooncake, BurstGPT …"),
    click.option("--num-prompts", type=int, help="Requests; of a trace, its first ones.  [default: 1000, or all]"),
    click.option("--request-rate", type=float, help="Requests a second; inf: at once.  [default: inf, or a trace's]"),
    click.option("--burstiness", type=float, default=1.0, help="1: Poisson; less comes in bursts, more is more even."),
    click.option("--input-len", metavar="N|DIST", help=f"Prompt tokens: {_LENGTH}.  [default: 1024]"),
    click.option("--output-len", metavar="N|DIST", help="Tokens of the answer, likewise.  [default: 128]"),
    click.option("--prefix-len", type=int, default=0, help="First prompt tokens that all requests share."),
    click.option("--turns", metavar="N|DIST", help="Turns of a conversation; --input-len is what each adds."),
    click.option("--think-time", metavar="S|DIST", help="Seconds between an answer and the user's next request."),
    click.option("--max-concurrency", type=int, help="Requests under way at most: a new one waits for an end."),
    click.option("--seed", type=int, default=0, help="Of everything that chance decides."),
]
_WORDS = ("trace", "num_prompts", "request_rate", "burstiness", "input_len", "output_len", "prefix_len", "turns",
          "think_time", "seed")  # fmt: skip


def traffic(words: dict[str, Any], limit: int | None) -> tuple[Any, str]:
    """Take the words of `TRAFFIC` (``limit``: --max-concurrency); give the requests, and what they are in words."""
    w = {key: words.pop(key) for key in _WORDS}
    if limit is not None:
        whole("--max-concurrency", limit, most=10**7)
    if w["trace"] is not None:
        return _replayed(w, limit)
    from ..serving.synthetic import synthetic

    rate = float("inf") if w["request_rate"] is None else w["request_rate"]
    made = synthetic(
        num_prompts=_or(w["num_prompts"], 1000), request_rate=rate, burstiness=w["burstiness"],
        input_len=_or(w["input_len"], 1024), output_len=_or(w["output_len"], 128), prefix_len=w["prefix_len"],
        turns=_or(w["turns"], 1), think_time=_or(w["think_time"], 0), users=limit, seed=w["seed"],
        block_tokens=words.get("block_size") or 16,
    )  # fmt: skip
    lengths = f"{_or(w['input_len'], 1024)} in, {_or(w['output_len'], 128)} out"
    how = f"at {rate:g}/s" if rate != float("inf") else "all at once" if limit is None else f"{limit} at a time"
    return made, f"{lengths}, {how}" + (f", conversations of {w['turns']} turns" if w["turns"] else "")


def _replayed(w: dict[str, Any], limit: int | None) -> tuple[Any, str]:
    for key in ("input_len", "output_len", "turns"):
        if w[key]:
            raise BadValue(f"--trace says all lengths itself and cannot be combined with --{key.replace('_', '-')}")
    from ..serving.requests import first
    from ..serving.synthetic import at_rate, beginning_alike, of_users
    from ..serving.trace import read_trace

    trace = read_trace(w["trace"])
    if w["num_prompts"] is not None:
        trace = first(trace, whole("--num-prompts", w["num_prompts"]))
    if w["prefix_len"]:
        trace = beginning_alike(trace, w["prefix_len"])
    if w["think_time"] is not None:
        trace = of_users(trace, limit, w["think_time"], w["seed"])
    how = "one after another" if trace.arrival_s is None and limit is None else "as they came"
    if w["request_rate"] is not None:
        trace = at_rate(trace, w["request_rate"], w["burstiness"], w["seed"])
        how = f"at {w['request_rate']:g}/s"
    if limit is not None:
        how += f", {limit} at a time" if trace.arrival_s is not None else ""
        how = how if trace.arrival_s is not None else f"{limit} at a time"
    return trace, f"of {base(trace.source)}, {how}"


def base(path: str) -> str:
    """The name of a file without its folders, for headers."""
    return path.replace("\\", "/").rpartition("/")[2]


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
