"""Synthetic requests: how often they come, how long they are, what they share; and traces at another rate.

synthetic(num_prompts=1000, request_rate=8, input_len="lognormal:mean=512,std=300", output_len=128, seed=1)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue, UnknownName, abbreviate, check_int, is_number
from ..specs.arguments import signature
from .trace import Trace, gamma_arrivals, shared_blocks, turns_before
from .trace_formats import BLOCK

MAX_TOKENS = 10**7  # the longest length that is drawn
MAX_PROMPTS = 10**8
LEAST_RATE = 1e-9  # requests a second: one in thirty years


# ------------------------------------------------------------------ distributions


def _fixed(rng: np.random.Generator, n: int, value: float) -> np.ndarray:
    return np.full(n, float(value))


def _uniform(rng: np.random.Generator, n: int, min: float, max: float) -> np.ndarray:
    return rng.uniform(min, max, n)


def _lognormal(rng: np.random.Generator, n: int, mean: float, std: float) -> np.ndarray:
    spread = math.log1p((std / mean) ** 2)  # so that mean and std are those of what is drawn, not of its logarithm
    return rng.lognormal(math.log(mean) - spread / 2, math.sqrt(spread), n)


def _exponential(rng: np.random.Generator, n: int, mean: float) -> np.ndarray:
    return rng.exponential(mean, n)


def _zipf(rng: np.random.Generator, n: int, a: float, min: float, max: float) -> np.ndarray:
    values = np.arange(math.ceil(min), math.floor(max) + 1, dtype=float)
    chance = np.cumsum(values**-a)
    return np.asarray(values[np.searchsorted(chance, rng.random(n) * chance[-1], side="right")])


class DistributionKind(NamedTuple):
    """A distribution: the figures that it needs, and how it is drawn; ``min`` and ``max`` cut any of them."""

    needs: tuple[str, ...]
    draw: Callable[..., np.ndarray]


DISTRIBUTIONS = {
    "fixed": DistributionKind(("value",), _fixed),
    "uniform": DistributionKind(("min", "max"), _uniform),
    "lognormal": DistributionKind(("mean", "std"), _lognormal),
    "exponential": DistributionKind(("mean",), _exponential),
    "zipf": DistributionKind(("a", "min", "max"), _zipf),
}


class Distribution(NamedTuple):
    """A number, or how it varies: ``parse_distribution("input_len", "uniform:min=100,max=900").draw(rng, 10)``"""

    kind: str
    figures: dict[str, float]
    least: float
    most: float

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """``n`` of them, within the limits."""
        kind = DISTRIBUTIONS[self.kind]
        values = kind.draw(rng, n, **{name: self.figures[name] for name in kind.needs})
        return np.asarray(values).clip(self.least, self.most)

    def draw_int(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """``n`` of them, as whole numbers."""
        return self.draw(rng, n).round().astype(np.int64)


def parse_distribution(name: str, given: float | str, *, least: float = 1.0, most: float = MAX_TOKENS) -> Distribution:
    """Check an argument that is a number or a distribution: ``512``, ``"lognormal:mean=512,std=300,max=4096"``"""
    text = str(given).strip()
    kind, colon, rest = text.partition(":")
    if not colon:
        return _parse_number(name, given, text, least, most)
    if kind not in DISTRIBUTIONS:
        raise UnknownName(f"distribution of `{name}`", kind, DISTRIBUTIONS)
    figures: dict[str, float] = {}
    for pair in rest.split(","):
        key, _, number = pair.partition("=")
        if key.strip() not in {*DISTRIBUTIONS[kind].needs, "min", "max"}:
            raise UnknownName(f"figure of `{name}` {kind}", key.strip(), {*DISTRIBUTIONS[kind].needs, "min", "max"})
        try:
            figures[key.strip()] = float(number)
        except ValueError:
            raise BadValue(f"`{name}` {kind}: {key.strip()} must be a number, not {number!r}") from None
    return _checked(name, kind, figures, least, most)


def _parse_number(name: str, given: Any, text: str, least: float, most: float) -> Distribution:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if text in DISTRIBUTIONS:
        raise BadValue(f"`{name}` {text} needs {_needs(text)}: {text}:{_example(text)}")
    if isinstance(given, bool) or not least <= value <= most:
        raise BadValue(
            f"`{name}` must be a number from {least:,g} to {most:,g}, or one of {', '.join(DISTRIBUTIONS)}, such "
            f"as lognormal:mean=512,std=300, not {abbreviate(given)}"
        )
    return Distribution("fixed", {"value": value}, least, most)


def _checked(name: str, kind: str, figures: dict[str, float], least: float, most: float) -> Distribution:
    missing = [key for key in DISTRIBUTIONS[kind].needs if key not in figures]
    if missing:
        raise BadValue(f"`{name}` {kind} lacks {' and '.join(missing)}: it needs {_needs(kind)}")
    for key, value in figures.items():
        low = 0.0 if key == "std" else least if key in ("min", "max", "value") else 1e-9
        high = 100.0 if key == "a" else most
        if not low <= value <= high:
            raise BadValue(f"`{name}` {kind}: {key} must be from {low:,g} to {high:,g}, not {value:,g}")
    low, high = figures.get("min", least), figures.get("max", most)
    if low > high:
        raise BadValue(f"`{name}` {kind}: min {low:,g} is above max {high:,g}")
    if kind == "zipf" and math.ceil(low) > math.floor(high):
        raise BadValue(f"`{name}` zipf: there is no whole number from {low:g} to {high:g}")
    return Distribution(kind, figures, low, high)


def _needs(kind: str) -> str:
    needs = DISTRIBUTIONS[kind].needs
    return needs[0] if len(needs) == 1 else f"{', '.join(needs[:-1])} and {needs[-1]}"


def _example(kind: str) -> str:
    examples = {"value": "512", "min": "64", "max": "4096", "mean": "512", "std": "300", "a": "1.2"}
    return ",".join(f"{key}={examples[key]}" for key in DISTRIBUTIONS[kind].needs)


# ------------------------------------------------------------------ synthetic requests


@signature()
def synthetic(
    *,
    num_prompts: int = 1000,
    request_rate: float = math.inf,
    burstiness: float = 1.0,
    input_len: float | str = 1024,
    output_len: float | str = 128,
    prefix_len: int = 0,
    turns: float | str = 1,
    think_time: float | str = 0,
    users: int | None = None,
    seed: int = 0,
    block_tokens: int = BLOCK,
) -> Trace:
    """Synthetic requests; the same seed gives the same ones.

    ``synthetic(num_prompts=200, request_rate=8, input_len=512, output_len="lognormal:mean=128,std=60")``

    The first ``prefix_len`` tokens of every prompt are the same; a prompt has at least one more.
    With several ``turns``, conversations arrive at ``request_rate`` and each turn adds ``input_len`` tokens to the
    prompt. ``think_time`` (s) passes between turns; with ``users`` but no turns, between the requests of each user.
    """
    count = check_int("num_prompts", num_prompts, most=MAX_PROMPTS)
    rng = np.random.default_rng(check_int("seed", seed, least=0, most=2**63))
    new = parse_distribution("input_len", input_len).draw_int(rng, count)
    outputs = parse_distribution("output_len", output_len, least=0).draw_int(rng, count)
    shared = check_int("prefix_len", prefix_len, least=0, most=MAX_TOKENS)
    pause = parse_distribution("think_time", think_time, least=0, most=1e7)
    sessions = _sessions(rng, parse_distribution("turns", turns, most=10**5), count)
    after = None if sessions is None else turns_before(sessions)
    if shared >= new.max():
        raise BadValue(
            f"`prefix_len` {shared:,} must be shorter than the prompts, of which the longest has {new.max():,} tokens"
        )
    new = np.maximum(new, np.where(True if after is None else after < 0, shared + 1, 0))
    if sessions is None and users is not None and pause.draw(rng, 1)[0] > 0:
        after = np.maximum(np.arange(count) - users, -1)
    prompts = new if sessions is None else _with_history(new, outputs, turns_before(sessions))
    begins = _arrivals(rng, count if after is None else int((after < 0).sum()), request_rate, burstiness)
    blocks = None
    if shared or sessions is not None:
        zeros = np.zeros(count, np.int64)
        blocks = shared_blocks(
            prompts,
            outputs,
            prefix=zeros if shared else None,
            block_tokens=block_tokens,
            prefix_tokens=zeros + shared if shared else None,
            session=sessions,
        )
    return Trace(
        input_tokens=prompts,
        output_tokens=outputs,
        arrival_s=begins if after is None else begins[np.cumsum(after < 0) - 1],
        blocks=blocks,
        block_tokens=block_tokens if blocks is not None else 0,
        after=after,
        think_s=None if after is None else np.where(after >= 0, pause.draw(rng, count), 0.0),
        source="synthetic",
    )


def _sessions(rng: np.random.Generator, turns: Distribution, count: int) -> np.ndarray | None:
    """Which conversation every request is a turn of; None if all are alone."""
    if turns.kind == "fixed" and round(turns.figures["value"]) == 1:
        return None
    lengths = np.empty(0, np.int64)
    while lengths.sum() < count:
        lengths = np.concatenate([lengths, turns.draw_int(rng, max(16, count // 4))])
    return np.repeat(np.arange(len(lengths)), lengths)[:count]


def _with_history(new: np.ndarray, outputs: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Whole prompts: what each turn adds, after everything that was said before it."""
    prompts = new.copy()
    for i, previous in enumerate(after.tolist()):
        if previous >= 0:
            prompts[i] += prompts[previous] + outputs[previous]
    return prompts


def _arrivals(rng: np.random.Generator, count: int, rate: Any, burstiness: Any) -> np.ndarray:
    """Gaps from a gamma distribution of mean 1/rate: 1 is Poisson, less comes in bursts, more is more even."""
    if not is_number(rate) or not rate >= LEAST_RATE:
        raise BadValue(
            f"`request_rate` must be a positive number of requests per second, from {LEAST_RATE:g}, or inf, not "
            f"{abbreviate(rate)}"
        )
    if not is_number(burstiness) or not 1e-6 <= burstiness <= 1e6:
        raise BadValue(f"`burstiness` must be a positive number from 1e-06 to 1e+06, not {abbreviate(burstiness)}")
    return gamma_arrivals(rng, count, rate, burstiness)


def session_starts(rng: np.random.Generator, count: int, rate: float, burstiness: float = 1.0) -> np.ndarray:
    """When sessions begin, in s: ``session_starts(np.random.default_rng(0), 3, 0.5)``"""
    return _arrivals(rng, count, rate, burstiness)


# ------------------------------------------------------------------ traces, changed


def with_shared_prefix(trace: Trace, prefix_len: int) -> Trace:
    """The requests of a trace, whose first tokens are the same: ``with_shared_prefix(trace, 512)``"""
    shared = check_int("prefix_len", prefix_len, least=0, most=MAX_TOKENS)
    if trace.blocks is not None:
        raise BadValue(
            f"`prefix_len` {shared:,} cannot be combined with {trace.source}, which has its own shared prefixes"
        )
    zeros = np.zeros(len(trace), np.int64)
    blocks = shared_blocks(trace.input_tokens, trace.output_tokens, prefix=zeros, prefix_tokens=zeros + shared)
    return msgspec.structs.replace(trace, blocks=blocks, block_tokens=BLOCK)


def with_users(trace: Trace, users: int | None, think_time: float | str, seed: int = 0) -> Trace:
    """The requests of a trace, sent in turn by so many users with pauses in between: ``with_users(trace, 8, 2.0)``"""
    if users is None or trace.after is not None:
        why = "needs users: give `max_concurrency`" if users is None else "is already in the trace"
        raise BadValue(f"`think_time` {abbreviate(think_time)} {why}")
    pause = parse_distribution("think_time", think_time, least=0, most=1e7)
    rng = np.random.default_rng(check_int("seed", seed, least=0, most=2**63))
    after = np.maximum(np.arange(len(trace)) - users, -1)
    arrival = np.zeros(len(trace)) if trace.arrival_s is None else trace.arrival_s
    return msgspec.structs.replace(
        trace, arrival_s=arrival, after=after, think_s=np.where(after >= 0, pause.draw(rng, len(trace)), 0.0)
    )


def at_rate(trace: Trace, request_rate: float, burstiness: float = 1.0, seed: int = 0) -> Trace:
    """The requests of a trace, sent at another rate than they were: ``at_rate(trace, 8.0)``

    Of a trace with sessions it is the rate at which they begin; their turns follow as before.
    """
    rng = np.random.default_rng(check_int("seed", seed, least=0, most=2**63))
    if trace.sessions is None:
        return msgspec.structs.replace(trace, arrival_s=_arrivals(rng, len(trace), request_rate, burstiness))
    return _with_starts(trace, _arrivals(rng, len(trace.sessions), request_rate, burstiness))


def _starts(trace: Trace) -> np.ndarray | None:
    """When the sessions of a trace begin, or its requests if it has none."""
    if trace.sessions is None or trace.arrival_s is None:
        return trace.arrival_s
    starts = np.full(len(trace.sessions), math.inf)
    np.minimum.at(starts, trace.sessions.session, trace.arrival_s)
    return starts


def _with_starts(trace: Trace, starts: np.ndarray) -> Trace:
    """The trace with other beginnings; within a session times stay as they were."""
    if trace.sessions is None:
        return msgspec.structs.replace(trace, arrival_s=starts)
    session, own = trace.sessions.session, _starts(trace)
    later = 0.0 if trace.arrival_s is None or own is None else trace.arrival_s - own[session]
    return msgspec.structs.replace(trace, arrival_s=starts[session] + later)


def own_rate(trace: Trace) -> float | None:
    """Requests (or sessions) a second at which a trace came: ``own_rate(trace)  # 5.4``; None if all came at once"""
    times = _starts(trace)
    span = float(times.max() - times.min()) if times is not None and len(times) > 1 else 0.0
    return (len(times) - 1) / span if times is not None and span > 0 else None


def scale_to_rate(trace: Trace, rate: float, seed: int = 0) -> Trace:
    """The trace with its arrivals at another mean rate: ``scale_to_rate(trace, 8.0)``

    They are stretched, so that bursts stay bursts; a trace without any gets Poisson arrivals.
    """
    own, times = own_rate(trace), _starts(trace)
    if own is None or times is None or not is_number(rate) or not LEAST_RATE <= rate < math.inf:
        return at_rate(trace, rate, 1.0, seed)
    return _with_starts(trace, (times - times.min()) * (own / rate))


def stretch_label(stretch: float) -> str:
    """How arrivals were stretched, for headers: ``stretch_label(2.3)  # 'its arrivals stretched ×2.3'``"""
    return f"arrivals {'stretched' if stretch >= 1 else 'compressed'} ×{max(stretch, 1 / stretch):.3g}"
