"""What a search is asked for: the requests that will come, what they must keep, and what is best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue, UnknownName, abbreviate, check_int, check_positive, is_number
from ..serving.capacity import scale_to_rate
from ..serving.metrics import parse_goodput
from ..serving.synthetic import at_rate, synthetic, with_shared_prefix
from ..serving.trace import Trace

OBJECTIVES = ("throughput", "cost", "latency", "energy")
SAMPLE = 512  # requests that are drawn to learn the mean lengths


class Traffic(NamedTuple):
    """Requests to come: means for pricing, and how to make as many as a simulation needs."""

    input_len: float  # mean tokens of a prompt
    output_len: float  # mean tokens of an answer
    prefix_len: int  # first tokens that all prompts share
    longest: int  # tokens of the longest sequence
    rate: float | None  # requests a second that must be carried; None: as many as can be
    made_up: dict[str, Any]  # words of `synthetic`, where there is no trace
    trace: Trace | None = None
    seed: int = 0

    @property
    def burstiness(self) -> float:
        """1: at random; more is more even. Of a trace nobody asks."""
        return float(self.made_up.get("burstiness", 1.0))

    def requests(self, count: int, rate: float, among: int) -> Trace:
        """What one of ``among`` replicas gets of the requests, in turn: ``count`` of them, ``rate`` a second here.

        Every n-th arrival of a Poisson stream: gaps are gamma distributed with shape n. A trace is thinned as it is.
        """
        if self.trace is None:
            words = {**self.made_up, "burstiness": self.made_up["burstiness"] * among}
            made = synthetic(num_prompts=count, request_rate=rate, seed=self.seed, **words)
            return scale_to_rate(made, rate)  # so that few requests come at the rate, too, and not by chance at another
        mine = every(self.trace, among, count)
        mine = at_rate(mine, rate, float(among), self.seed) if mine.arrival_s is None else mine
        return scale_to_rate(mine, rate, self.seed)


class Aim(NamedTuple):
    """What a good plan is."""

    objective: str
    limits: dict[str, float]  # of --goodput, in seconds
    share: float  # of the requests that must keep them


def every(trace: Trace, step: int, most: int) -> Trace:
    """Every ``step``-th request of a trace, ``most`` at most: what round robin sends to one of so many replicas."""
    kept = slice(0, step * most, step)
    words = ("input_tokens", "output_tokens", "arrival_s", "blocks", "priority")
    taken = {word: column[kept] for word in words if (column := getattr(trace, word)) is not None}
    return msgspec.structs.replace(trace, **taken, after=None, think_s=None, measured={})


def traffic(
    *,
    trace: Trace | None = None,
    input_len: float | str | None = None,
    output_len: float | str | None = None,
    prefix_len: int = 0,
    request_rate: float | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
    block_tokens: int = 16,
) -> Traffic:
    """Requests made up by their lengths, or those of a trace; its own rate holds unless another is given."""
    if request_rate is not None and (not is_number(request_rate) or not 0 < request_rate < 1e9):
        raise BadValue(
            f"--request-rate must be a positive number of requests a second, not {abbreviate(request_rate)}; "
            "leave it away to find the highest"
        )
    made_up: dict[str, Any] = {}
    if trace is None:
        made_up = {
            "input_len": 1024 if input_len is None else input_len,
            "prefix_len": prefix_len,
            "output_len": 128 if output_len is None else output_len,
            "burstiness": burstiness,
            "block_tokens": block_tokens,
        }
        sample = synthetic(num_prompts=SAMPLE, seed=seed, **made_up)
    else:
        for word, value in (("--input-len", input_len), ("--output-len", output_len)):
            if value is not None:
                raise BadValue(f"--trace says all lengths itself and cannot be combined with {word}")
        if len(trace) < 2:
            raise BadValue(f"a search needs at least two requests, and the trace has {len(trace)}")
        if trace.after is not None and (trace.after >= 0).any():
            raise BadValue(
                "a search thins out a trace for one replica, which conversations do not survive: leave the "
                "sessions of the trace away"
            )
        trace = with_shared_prefix(trace, prefix_len) if prefix_len else trace
        span = float(np.ptp(trace.arrival_s)) if trace.arrival_s is not None else 0.0
        if request_rate is None and span > 0:
            request_rate = (len(trace) - 1) / span
        elif request_rate is not None and span > 0:
            trace = scale_to_rate(trace, request_rate, seed)
        elif request_rate is not None:
            trace = at_rate(trace, request_rate, burstiness, seed)
        sample = trace
    answers = float(sample.output_tokens.mean())
    if answers < 2:
        raise BadValue(f"a search is about answers of at least 2 tokens, not {answers:g}: one token is all prefill")
    longest = int((sample.input_tokens + sample.output_tokens).max())
    return Traffic(
        float(sample.input_tokens.mean()),
        answers,
        check_int("--prefix-len", prefix_len, least=0),
        longest,
        request_rate,
        made_up,
        trace,
        seed,
    )


def aim(objective: str, goodput: str | Iterable[str] | Mapping[str, float] | None, share: float, answer: float) -> Aim:
    """Check what is wanted; limits that no request could keep together are an error."""
    if objective not in OBJECTIVES:
        raise UnknownName("--objective", objective, OBJECTIVES)
    if isinstance(goodput, Mapping):
        goodput = [f"{name}:{limit}" for name, limit in goodput.items()]
    found = parse_goodput([goodput] if isinstance(goodput, str) else goodput or ())
    check_positive("--goodput-share", share, 1.0)
    if "e2el" in found and found["e2el"] <= found.get("ttft", 0.0) and "ttft" in found:
        raise BadValue(
            f"--goodput contradicts itself: e2el:{found['e2el']:g} is not above ttft:{found['ttft']:g}, but "
            "the whole answer comes after its first token"
        )
    return Aim(objective, {name: limit / 1e3 for name, limit in found.items()}, float(share))
