"""What a search is for: the requests to serve (`Traffic`) and what makes a plan good (`Objective`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue, UnknownName, abbreviate, check_int, check_positive, is_number
from ..serving.metrics import parse_goodput
from ..serving.steady_run import RequestSupply
from ..serving.synthetic import LEAST_RATE, at_rate, own_rate, scale_to_rate, synthetic, with_shared_prefix
from ..serving.trace import Trace, rows_of

OBJECTIVES = ("throughput", "cost", "latency", "energy")
MAX_RATE = "max"  # of `request_rate`: the highest that holds
SAMPLE = 512  # synthetic requests that are drawn for the mean lengths


class Traffic(NamedTuple):
    """The requests: mean lengths for estimates, and the means to make as many requests as a simulation needs."""

    input_len: float  # mean tokens of a prompt
    output_len: float  # mean tokens of an answer
    prefix_len: int  # first tokens that all prompts share
    max_len: int  # tokens of the longest sequence
    request_rate: float | None  # requests/s that must be carried; None: as many as possible
    synthetic_args: dict[str, Any]  # keywords of `synthetic`, where there is no trace
    trace: Trace | None = None
    seed: int = 0
    stretch: float | None = None  # of the trace's arrivals: 2 is half its own rate; None: they were not stretched

    @property
    def decode_tokens(self) -> float:
        """Mean tokens of an answer after the first."""
        return self.output_len - 1

    @property
    def burstiness(self) -> float:
        """Shape of the gamma distribution of gaps, as in ``vllm bench serve``: 1 is Poisson; not known of a trace."""
        return float(self.synthetic_args.get("burstiness", 1.0))

    @property
    def supply(self) -> RequestSupply:
        """As many of these requests as a simulation needs."""
        args = {name: value for name, value in self.synthetic_args.items() if name != "burstiness"}
        return RequestSupply(self.trace, args, self.burstiness, self.seed)

    def requests(self, count: int, rate: float, replicas: int) -> Trace:
        """``count`` requests at ``rate`` a second as one of ``replicas`` replicas gets them by round robin."""
        return self.supply.requests(count, rate, replicas)


class Objective(NamedTuple):
    """What is optimised, under which service-level objectives: ``Objective("cost", {"ttft": 0.5}, 0.9)``"""

    name: str  # one of OBJECTIVES
    slo: dict[str, float]  # limits of ttft, tpot, e2el in seconds
    goodput_share: float  # of the requests that must keep all of them


def by_time(trace: Trace) -> Trace:
    """The trace in the order in which its requests come: files need not be sorted."""
    if trace.arrival_s is None or (np.diff(trace.arrival_s) >= 0).all():
        return trace
    return requests_at(trace, np.argsort(trace.arrival_s, kind="stable").tolist())


def requests_at(trace: Trace, rows: Sequence[int]) -> Trace:
    """Some requests of a trace, by their rows; what they waited for is left out: ``requests_at(trace, range(10))``"""
    chosen = rows_of(trace, np.asarray(rows, np.int64))
    return msgspec.structs.replace(chosen, after=None, think_s=None, sessions=None, measured={})


def build_traffic(
    *,
    trace: Trace | None = None,
    input_len: float | str | None = None,
    output_len: float | str | None = None,
    prefix_len: int = 0,
    request_rate: float | str | None = None,
    burstiness: float | None = None,
    seed: int = 0,
    block_tokens: int = 16,
) -> Traffic:
    """Synthetic requests of some lengths, or those of a trace, at its own rate unless another is given.

    ``build_traffic(input_len=4000, output_len=500, request_rate=8.0)``. The rate "max" asks for the highest, also of a
    trace with arrivals, which are then stretched to each rate that is tried.
    """
    rate = parse_rate(request_rate)
    stretch: float | None = None
    synthetic_args: dict[str, Any] = {}
    if trace is None:
        synthetic_args = {
            "input_len": 1024 if input_len is None else input_len,
            "prefix_len": prefix_len,
            "output_len": 128 if output_len is None else output_len,
            "burstiness": 1.0 if burstiness is None else burstiness,
            "block_tokens": block_tokens,
        }
        sample = synthetic(num_prompts=SAMPLE, seed=seed, **synthetic_args)
    else:
        _check_trace(trace, input_len, output_len)
        trace = with_shared_prefix(trace, prefix_len) if prefix_len else trace
        own = own_rate(trace)
        if rate is not None and burstiness is not None:  # arrivals of that burstiness instead of its own
            trace = at_rate(trace, rate, burstiness, seed)
        elif rate is not None:
            trace, stretch = scale_to_rate(trace, rate, seed), None if own is None else own / rate
        elif request_rate is None:
            rate = own
        trace = sample = by_time(trace)
    mean_output = float(sample.output_tokens.mean())
    if mean_output < 2:
        raise BadValue(f"a search needs at least 2 output tokens, not {mean_output:g}: one token is all prefill")
    return Traffic(
        input_len=float(sample.input_tokens.mean()),
        output_len=mean_output,
        prefix_len=check_int("prefix_len", prefix_len, least=0),
        max_len=int((sample.input_tokens + sample.output_tokens).max()),
        request_rate=rate,
        synthetic_args=synthetic_args,
        trace=trace,
        seed=seed,
        stretch=stretch,
    )


def parse_rate(request_rate: float | str | None) -> float | None:
    """Requests a second; None for the highest ("max"), and where nothing is given."""
    if request_rate is None or request_rate == MAX_RATE:
        return None
    try:
        rate = float(request_rate) if isinstance(request_rate, str) else request_rate
    except ValueError:
        rate = -1.0
    if not is_number(rate) or not LEAST_RATE <= rate < 1e9:
        raise BadValue(
            "`request_rate` must be a positive number of requests per second, "
            f"from {LEAST_RATE:g}, or {MAX_RATE} to find "
            f"the highest, not {abbreviate(request_rate)}"
        )
    return float(rate)


def _check_trace(trace: Trace, input_len: Any, output_len: Any) -> None:
    """Refuse lengths beside a trace, and traces that one replica cannot get a part of."""
    for name, value in (("input_len", input_len), ("output_len", output_len)):
        if value is not None:
            raise BadValue(f"`trace` sets all lengths and cannot be combined with `{name}`")
    if len(trace) < 2:
        raise BadValue(f"a search needs at least two requests, and the trace has {len(trace)}")
    if trace.after is not None and (trace.after >= 0).any():
        raise BadValue("the trace has sessions, whose turns wait for each other: `session_search` finds plans for them")


def build_objective(
    name: str, goodput: str | Iterable[str] | Mapping[str, float] | None, goodput_share: float
) -> Objective:
    """Checked: ``build_objective("throughput", "ttft:500,tpot:50", 0.9).slo  # {'ttft': 0.5, 'tpot': 0.05}``"""
    if name not in OBJECTIVES:
        raise UnknownName("`objective`", name, OBJECTIVES)
    if isinstance(goodput, Mapping):
        goodput = [f"{metric}:{limit}" for metric, limit in goodput.items()]
    limits = parse_goodput([goodput] if isinstance(goodput, str) else goodput or ())
    check_positive("goodput_share", goodput_share, 1.0)
    if "e2el" in limits and "ttft" in limits and limits["e2el"] <= limits["ttft"]:
        raise BadValue(
            f"`goodput` contradicts itself: e2el:{limits['e2el']:g} is not above ttft:{limits['ttft']:g}, but "
            "end-to-end latency includes TTFT"
        )
    return Objective(name, {metric: limit / 1e3 for metric, limit in limits.items()}, float(goodput_share))
