"""The requests that the words of ``simulate`` and ``bench`` ask for: those of a trace, or made up.

traffic({"num_prompts": 100, "request_rate": 8.0}, None)        # a Trace, and '1024 in, 128 out, at 8/s'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BadValue, whole

USUAL: Mapping[str, Any] = {  # the words that are about requests, and what they are where nobody says
    "trace": None, "num_prompts": None, "request_rate": None, "burstiness": 1.0, "input_len": None, "output_len": None,
    "prefix_len": 0, "turns": None, "think_time": None, "seed": 0,
}  # fmt: skip


def traffic(words: dict[str, Any], limit: int | None) -> tuple[Any, str]:
    """Take the words that are about requests (``limit``: --max-concurrency); give them, and what they are in words."""
    w = {**USUAL, **{key: words.pop(key) for key in USUAL if key in words}}
    if limit is not None:
        whole("--max-concurrency", limit, most=10**7)
    if w["trace"] is not None:
        return _replayed(w, limit)
    from .synthetic import synthetic

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
    from .requests import first
    from .synthetic import at_rate, beginning_alike, of_users
    from .trace import read_trace

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
