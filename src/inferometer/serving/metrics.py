"""What a run of requests amounts to, under the names of ``vllm bench serve``: latencies, rates, goodput.

metrics(outcome, parse_goodput(["ttft:500 tpot:50"]))["p99_ttft_ms"]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import BadValue, UnknownName, abbreviate, check_positive
from ..specs.arguments import signature
from .outcome import Outcome

LABELS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
LATENCIES = tuple(LABELS)
GOODPUT_METRICS = ("ttft", "tpot", "e2el")  # what `goodput` may limit: what a request has one of
PERCENTILES = (90, 99)


def parse_goodput(goodput: str | Iterable[str] | Mapping[str, float]) -> dict[str, float]:
    """Limits in ms that a good request meets: ``parse_goodput("ttft:500,tpot:50")  # {'ttft': 500.0, 'tpot': 50.0}``"""
    if isinstance(goodput, Mapping):
        goodput = [f"{name}:{limit}" for name, limit in goodput.items()]
    texts = [goodput] if isinstance(goodput, str) else goodput
    if not isinstance(texts, Iterable) or not all(isinstance(text, str) for text in texts):
        raise BadValue(f"`goodput` takes pairs such as ttft:500 (ms), not {abbreviate(texts)}")
    limits: dict[str, float] = {}
    for pair in (pair for text in texts for pair in re.split(r"[,\s]+", text.strip()) if pair):
        name, colon, number = pair.partition(":")
        if not colon:
            raise BadValue(f"`goodput` takes pairs such as ttft:500 (ms), not {pair!r}")
        if name.lower() not in GOODPUT_METRICS:
            raise UnknownName("`goodput` metric", name, GOODPUT_METRICS)
        try:
            limit = float(number)
        except ValueError:
            raise BadValue(f"`goodput` {name} must be a number of ms, not {number!r}") from None
        check_positive(f"`goodput` {name}", limit)
        if name.lower() in limits:
            raise BadValue(f"`goodput` limits {name} twice: {limits[name.lower()]:g} and {limit:g} ms")
        limits[name.lower()] = limit
    return limits


def limits_text(limits: Mapping[str, float]) -> str:
    """Limits as people write them: ``limits_text({"ttft": 500.0})  # 'TTFT ≤ 500 ms'``"""
    return ", ".join(f"{LABELS[name]} ≤ {limit:g} ms" for name, limit in limits.items())


def latencies(outcome: Outcome) -> dict[str, np.ndarray]:
    """TTFT, TPOT and end-to-end latency of every request in ms; nan where it has none.

    An answer of one token or none has no TPOT; one of no token ends with its prefill, which is its TTFT, too.
    """
    ttft = (outcome.first_token_s - outcome.arrival_s) * 1e3
    e2el = (outcome.finished_s - outcome.arrival_s) * 1e3
    gaps = outcome.output_tokens - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(gaps > 0, (e2el - ttft) / gaps, np.nan)
    return {"ttft": ttft, "tpot": tpot, "e2el": e2el}


@signature()
def metrics(
    outcome: Outcome,
    goodput: dict[str, float] | None = None,
    gaps_ms: np.ndarray | None = None,
    percentiles: Sequence[float] = PERCENTILES,
) -> dict[str, Any]:
    """The result as ``vllm bench serve`` would print it; ``gaps_ms`` are the gaps between tokens of a live server.

    ``metrics(outcome, {"ttft": 500, "tpot": 50})["request_goodput"]``

    A simulation has them in ``outcome.gaps``. Where there are none, every gap of a request is its TPOT, so the mean
    inter-token latency is right and its percentiles are those of the requests' means, weighted by their tokens.
    """
    latency = latencies(outcome)
    done = ~np.isnan(outcome.finished_s)
    completed, duration = int(done.sum()), float(outcome.duration_s)
    input_tokens, output_tokens = int(outcome.input_tokens[done].sum()), int(outcome.output_tokens[done].sum())

    def rate(amount: float) -> float | None:
        return amount / duration if duration > 0 else None

    result: dict[str, Any] = {
        "duration": duration,
        "completed": completed,
        "failed": len(done) - completed - len(outcome.rejected),
        "rejected": len(outcome.rejected),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": rate(completed),
        "request_goodput": rate(int(good_requests(latency, goodput).sum())) if goodput else None,
        "output_throughput": rate(output_tokens),
        "total_token_throughput": rate(input_tokens + output_tokens),
        "max_concurrent_requests": _max_concurrent(outcome),
    }
    for name in LATENCIES:
        if name != "itl":
            result |= _summary(name, np.where(done, latency[name], np.nan), percentiles=percentiles)
        elif gaps_ms is not None:
            result |= _summary(name, gaps_ms, percentiles=percentiles)
        else:
            result |= _inter_token(outcome, latency["tpot"], done, percentiles)
    return result


def _inter_token(
    outcome: Outcome, tpot: np.ndarray, done: np.ndarray, percentiles: Sequence[float]
) -> dict[str, float | None]:
    """Statistics of the gaps between tokens of a simulation; of the requests' TPOT where no gaps were seen."""
    if outcome.gaps is None:
        return _summary("itl", tpot, np.where(done, np.maximum(outcome.output_tokens - 1, 0), 0), percentiles)
    seconds, counts = outcome.gaps
    summary = _summary("itl", seconds * 1e3, counts, percentiles)
    if len(counts) and np.array_equal(done, ~np.isnan(outcome.first_token_s)):  # no request is under way
        all_s = (outcome.finished_s - outcome.first_token_s)[done].sum()
        summary["mean_itl_ms"] = float(all_s / counts.sum() * 1e3)  # exact, where the lengths are rounded
    return summary


def good_requests(latency: dict[str, np.ndarray], goodput: dict[str, float]) -> np.ndarray:
    """Which requests keep all limits; what a request has not (the TPOT of one token) it keeps."""
    kept: np.ndarray = ~np.isnan(latency["e2el"])
    for name, limit in goodput.items():
        kept &= (latency[name] <= limit) | np.isnan(latency[name])
    return kept


def _summary(
    name: str, values: np.ndarray, weights: np.ndarray | None = None, percentiles: Sequence[float] = PERCENTILES
) -> dict[str, float | None]:
    """Mean, median, std and percentiles of what is not nan; None where nothing is."""
    keep = ~np.isnan(values) if weights is None else ~np.isnan(values) & (weights > 0)
    x = values[keep]
    labels = ["mean", "median", "std", *(f"p{p:g}" for p in percentiles)]
    if not len(x):
        return {f"{label}_{name}_ms": None for label in labels}
    if weights is None:
        mean, std = float(x.mean()), float(x.std())
        points = np.percentile(x, (50, *percentiles))
    else:
        w = weights[keep].astype(float)
        mean = float(np.average(x, weights=w))
        std = float(np.sqrt(np.average((x - mean) ** 2, weights=w)))
        order = np.argsort(x, kind="stable")
        reached = np.cumsum(w[order])
        rank = np.array((50, *percentiles)) / 100 * (reached[-1] - 1)  # as np.percentile of the flat list has it
        below, above = (x[order][np.searchsorted(reached[:-1], at, "right")] for at in (np.floor(rank), np.ceil(rank)))
        points = below + (above - below) * (rank - np.floor(rank))
    numbers = (mean, float(points[0]), std, *map(float, points[1:]))
    return {f"{label}_{name}_ms": number for label, number in zip(labels, numbers, strict=True)}


def _max_concurrent(outcome: Outcome) -> int:
    """The largest number of requests in the system at one time."""
    finished = ~np.isnan(outcome.finished_s)
    times = np.concatenate([outcome.arrival_s[finished], outcome.finished_s[finished]]).round(9)
    change = np.repeat([1, -1], finished.sum())
    order = np.lexsort((change, times))  # one that leaves makes room before one that comes
    return int(np.cumsum(change[order]).max(initial=0))
