"""The result of a run under the keys of ``vllm bench serve --save-result``, and what a reader must know of it.

Keys and types are those of vLLM v0.25.1 (vllm/benchmarks/serve.py:1188-1214, 1251-1288 and 2128-2164), so that scripts
which read its files read ours; keys of our own stand beside them.

    parse_percentiles("50,99.9")                                                # (50.0, 99.9)
    load_keys(now=datetime.now(), model="llama-3.1-8b", api="chat", …)["backend"]   # 'openai-chat'
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from ..base.errors import BadValue, UnknownName
from ..serving.metrics import LATENCIES, metrics
from ..serving.outcome import Outcome
from ..serving.trace import Trace
from .load_generator import Reply
from .trace_replay import RampUp, outcome_of_replies

BACKENDS = {"completions": "openai", "chat": "openai-chat"}  # our API -> vLLM's name of it
LATE = 0.01  # s: requests that are sent later than this are not the load that was set
DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")


def parse_percentiles(text: str) -> tuple[float, ...]:
    """``parse_percentiles("25,50,75")  # (25.0, 50.0, 75.0)``"""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(0 <= value <= 100 for value in values):
        raise BadValue(f"`metric_percentiles` takes numbers from 0 to 100, such as 50,90,99, not {text!r}")
    return tuple(dict.fromkeys(values))


def parse_percentile_metrics(text: str) -> tuple[str, ...]:
    """``parse_percentile_metrics("ttft,itl")  # ('ttft', 'itl')``"""
    names = tuple(part.strip().lower() for part in text.split(","))
    for name in names:
        if name not in LATENCIES:
            raise UnknownName("`percentile_metrics` metric", name, LATENCIES)
    return names


def load_keys(
    *,
    now: datetime,
    model: str,
    api: str,
    label: str | None,
    num_prompts: int,
    request_rate: float,
    burstiness: float,
    max_concurrency: int | None,
    ramp_up: RampUp | None,
) -> dict[str, Any]:
    """What vLLM writes of a run before its result: when, of what, under which load."""
    keys: dict[str, Any] = {
        "date": now.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": BACKENDS[api],
        "backend": BACKENDS[api],
        "label": label,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": num_prompts,
        "request_rate": "inf" if math.isinf(request_rate) else float(request_rate),
        "burstiness": float(burstiness),
        "max_concurrency": max_concurrency,
    }
    if ramp_up is not None:
        keys |= {f"ramp_up_{name}": value for name, value in ramp_up._asdict().items()}
    return keys


def summed(
    trace: Trace,
    replies: Sequence[Reply | None],
    goodput: dict[str, float],
    percentiles: Sequence[float] = (90, 99),
    percentile_metrics: Sequence[str] = LATENCIES,
) -> tuple[dict[str, Any], Outcome]:
    """Latencies, rates and counts of a run. Requests that were never sent, or were under way when it was cut short, are
    ``cancelled``, not ``failed``; ``failures`` counts the reasons of the latter."""
    outcome = outcome_of_replies(trace, replies)
    gaps = np.array([gap * 1e3 for reply in replies if reply is not None for gap in reply.gaps])
    result = metrics(outcome, goodput, gaps, percentiles)
    for key in [key for key in result if re.fullmatch(r"p[\d.]+_.+_ms", key)]:
        if key.split("_")[1] not in percentile_metrics:
            del result[key]
    result["failed"] = result.pop("rejected")
    result["cancelled"] = len(replies) - result["completed"] - result["failed"]
    result["max_output_tokens_per_s"] = most_tokens_in_a_second(replies)
    result["rtfx"] = 0.0  # of speech, which is not measured here
    reasons = Counter(reply.error for reply in replies if reply is not None and reply.error)
    result["failures"] = dict(reasons.most_common())
    return result, outcome


def most_tokens_in_a_second(replies: Sequence[Reply | None]) -> float:
    """Events with tokens in the best whole second after the first request was sent, as vLLM counts them."""
    done = [reply for reply in replies if reply is not None and not math.isnan(reply.last)]
    if not done:
        return 0.0
    moments = [reply.first + np.cumsum([0.0, *reply.gaps]) for reply in done]
    start = min(reply.sent for reply in done)
    return float(np.bincount((np.concatenate(moments) - start).astype(np.int64)).max())


def details(replies: Sequence[Reply | None]) -> dict[str, list[Any]]:
    """What ``--save-detailed`` adds: lists with an entry for each request that was answered or failed.

    Seconds; `start_times` count from the start of the run.
    """
    rows = [reply for reply in replies if reply is not None and not reply.cancelled]
    columns = (
        [row.input_tokens for row in rows],
        [0 if row.error else row.output_tokens for row in rows],
        [0.0 if row.error else row.first - row.sent for row in rows],
        [row.gaps for row in rows],
        [row.sent for row in rows],
        [row.text for row in rows],
        [row.error for row in rows],
    )
    return dict(zip(DETAILS, columns, strict=True))


def rate_changes(ramp_up: RampUp, trace: Trace, start: datetime) -> list[dict[str, Any]]:
    """When the rate of a ramp-up reached each whole number: vLLM's ``rps_change_events``."""
    assert trace.arrival_s is not None
    last = int(ramp_up.start_rps)
    changes = [(last, 0.0)]
    for due, rate in zip(trace.arrival_s.tolist(), ramp_up.rates(len(trace)).tolist(), strict=True):
        changes += [(value, due) for value in range(last + 1, int(rate) + 1)]
        last = max(last, int(rate))
    return [{"rps": value, "timestamp": (start + timedelta(seconds=due)).isoformat()} for value, due in changes]


# ------------------------------------------------------------------ what a reader must know


def run_warnings(
    replies: Sequence[Reply | None], wanted: Sequence[int] | None, cut: bool, lags: Sequence[float]
) -> list[str]:
    """Sentences about a run; ``wanted`` are the lengths that were set for the answers, None where none were.

    ``lags``: seconds that this process was late, many times a second.
    """
    unsent, under_way = sum(r is None for r in replies), sum(r is not None and r.cancelled for r in replies)
    warnings = [f"interrupted: {under_way:,} requests in flight and {unsent:,} not sent yet"] if cut else []
    failed = Counter(r.error for r in replies if r is not None and r.error)
    if failed:
        (reason, count), *others = failed.most_common()
        more = f", and {len(others)} other reasons" if others else ""
        warnings.append(f"{failed.total():,} of {len(replies):,} requests failed: {count:,} × {reason}{more}")
    if wanted is not None:
        warnings += _length_warnings(replies, wanted)
    lag = sorted(lags)[int(0.99 * (len(lags) - 1))] if lags else 0.0
    return [*warnings, *_late_warnings(replies, lag), *_lag_warnings(lag)]


def _length_warnings(replies: Sequence[Reply | None], wanted: Sequence[int]) -> list[str]:
    """Answers that are not as long as they were set to be: latencies and throughput are then of another load."""
    done = [(r, w) for r, w in zip(replies, wanted, strict=True) if r is not None and not math.isnan(r.last)]
    if not done:
        return []
    if not any(reply.counted for reply, _ in done):
        return ["the server sends no usage: tokens are counted by events, and an event may carry several tokens"]
    wrong = [(r.output_tokens, max(1, w)) for r, w in done if r.counted and r.output_tokens != max(1, w)]
    if not wrong:
        return []
    made, should = (sum(column) / len(wrong) for column in zip(*wrong, strict=True))
    kind = "shorter" if made < should else "longer"
    return [
        f"{len(wrong):,} of {len(done):,} responses were {kind} than requested, "
        f"on average {made:,.0f} tokens instead of "
        f"{should:,.0f}: the server does not obey ignore_eos and max_tokens, and this is not the requested load"
    ]


def _late_warnings(replies: Sequence[Reply | None], lag: float) -> list[str]:
    """Requests that were sent after they were due, and where the time went: connecting, or before that."""
    late = sorted((r.late, min(r.connect, r.late)) for r in replies if r is not None and not r.cancelled)
    if not late or late[int(0.99 * (len(late) - 1))][0] <= LATE:
        return []
    worst = late[int(0.99 * (len(late) - 1)) :]
    total, connecting = (sum(column) for column in zip(*worst, strict=True))
    if lag > worst[0][0] / 4:
        where = "this client did not keep up"
    elif connecting > total / 2:
        where = "most of the delay was connecting, while this client kept up: it lies in the server or the network"
    else:
        where = (
            "most of the delay was before connecting, in this client: send at a lower rate, or from a faster machine"
        )
    return [f"1% of the requests were sent {worst[0][0] * 1e3:,.0f} ms or more after they were due; {where}"]


def _lag_warnings(lag: float) -> list[str]:
    if lag <= LATE:
        return []
    return [
        f"this client was {lag * 1e3:,.0f} ms or more behind for 1% of the time, which is in the latencies: measure "
        "from a machine with less to do, or share the load between several clients"
    ]
