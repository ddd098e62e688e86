"""Requests made up: how often they come, how long they are, what they share.

synthetic(num_prompts=1000, request_rate=8, input_len="lognormal:mean=512,std=300", output_len=128, seed=1)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue, UnknownName, abbreviate, check_int, check_positive, is_number
from .trace import BLOCK, Trace, shared_blocks, turns_before

TOKENS = 10**7  # the longest length that is drawn
PROMPTS = 10**8


# ------------------------------------------------------------------ amounts that vary


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
    found: np.ndarray = values[np.searchsorted(chance, rng.random(n) * chance[-1], side="right")]
    return found


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
    """A number, or how it varies: ``amount("--input-len", "uniform:min=100,max=900").draw(rng, 10)``"""

    kind: str
    figures: dict[str, float]
    least: float
    most: float

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """``n`` of them, within the limits."""
        kind = DISTRIBUTIONS[self.kind]
        found: np.ndarray = kind.draw(rng, n, **{k: self.figures[k] for k in kind.needs})
        return found.clip(self.least, self.most)

    def draw_whole(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """``n`` of them, as whole numbers."""
        return self.draw(rng, n).round().astype(np.int64)


def parse_distribution(flag: str, given: float | str, *, least: float = 1.0, most: float = TOKENS) -> Distribution:
    """Check a number or the words of a distribution: ``512``, ``"lognormal:mean=512,std=300,max=4096"``"""
    text = str(given).strip()
    kind, colon, rest = text.partition(":")
    if not colon:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if kind in DISTRIBUTIONS:
            raise BadValue(f"{flag} {kind} needs {_words(kind)}: {kind}:{_example(kind)}")
        if isinstance(given, bool) or not least <= value <= most:
            raise BadValue(
                f"{flag} must be a number from {least:,g} to {most:,g}, or one of {', '.join(DISTRIBUTIONS)}, such "
                f"as lognormal:mean=512,std=300, not {abbreviate(given)}"
            )
        return Distribution("fixed", {"value": value}, least, most)
    if kind not in DISTRIBUTIONS:
        raise UnknownName(f"distribution of {flag}", kind, DISTRIBUTIONS)
    figures: dict[str, float] = {}
    for piece in rest.split(","):
        key, _, number = piece.partition("=")
        if key.strip() not in {*DISTRIBUTIONS[kind].needs, "min", "max"}:
            raise UnknownName(f"figure of {flag} {kind}", key.strip(), {*DISTRIBUTIONS[kind].needs, "min", "max"})
        try:
            figures[key.strip()] = float(number)
        except ValueError:
            raise BadValue(f"{flag} {kind}: {key.strip()} must be a number, not {number!r}") from None
    return _sound(flag, kind, figures, least, most)


def _sound(flag: str, kind: str, figures: dict[str, float], least: float, most: float) -> Distribution:
    lacking = [key for key in DISTRIBUTIONS[kind].needs if key not in figures]
    if lacking:
        raise BadValue(f"{flag} {kind} lacks {' and '.join(lacking)}: it needs {_words(kind)}")
    for key, value in figures.items():
        low = 0.0 if key == "std" else least if key in ("min", "max", "value") else 1e-9
        if not low <= value <= (100.0 if key == "a" else most):
            raise BadValue(
                f"{flag} {kind}: {key} must be from {low:,g} to {100.0 if key == 'a' else most:,g}, not {value:,g}"
            )
    low, high = figures.get("min", least), figures.get("max", most)
    if low > high:
        raise BadValue(f"{flag} {kind}: min {low:,g} is above max {high:,g}")
    if kind == "zipf" and math.ceil(low) > math.floor(high):
        raise BadValue(f"{flag} zipf: there is no whole number from {low:g} to {high:g}")
    return Distribution(kind, figures, low, high)


def _words(kind: str) -> str:
    needs = DISTRIBUTIONS[kind].needs
    return needs[0] if len(needs) == 1 else f"{', '.join(needs[:-1])} and {needs[-1]}"


def _example(kind: str) -> str:
    usual = {"value": "512", "min": "64", "max": "4096", "mean": "512", "std": "300", "a": "1.2"}
    return ",".join(f"{key}={usual[key]}" for key in DISTRIBUTIONS[kind].needs)


# ------------------------------------------------------------------ requests


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
    """Requests that were never sent: the same seed gives the same ones.

    The first ``prefix_len`` tokens of every prompt are the same; a prompt has at least one more.
    With several ``turns`` a conversation comes at ``request_rate``, ``input_len`` is what each turn adds, and a turn's
    prompt is everything said before it and that. ``think_time`` (s) passes between an answer and the next turn; with
    ``users`` but no turns, it passes between the requests of each of so many users.
    """
    count = check_int("--num-prompts", num_prompts, most=PROMPTS)
    rng = np.random.default_rng(check_int("--seed", seed, least=0, most=2**63))
    new = parse_distribution("--input-len", input_len).draw_whole(rng, count)
    made = parse_distribution("--output-len", output_len, least=0).draw_whole(rng, count)
    shared = check_int("--prefix-len", prefix_len, least=0, most=TOKENS)
    pause = parse_distribution("--think-time", think_time, least=0, most=1e7)
    talks = _sessions(rng, parse_distribution("--turns", turns, most=10**5), count)
    after = None if talks is None else turns_before(talks)
    if shared >= new.max():
        raise BadValue(
            f"--prefix-len {shared:,} must be shorter than the prompts, of which the longest has {new.max():,} tokens"
        )
    new = np.maximum(new, np.where(True if after is None else after < 0, shared + 1, 0))
    if talks is None and users is not None and pause.draw(rng, 1)[0] > 0:
        after = np.maximum(np.arange(count) - users, -1)
    prompt = new if talks is None else _with_history(new, made, turns_before(talks))
    begins = _arrivals(rng, count if after is None else int((after < 0).sum()), request_rate, burstiness)
    arrival = begins if after is None else begins[np.cumsum(after < 0) - 1]
    blocks = None
    if shared or talks is not None:
        zeros = np.zeros(count, np.int64)
        blocks = shared_blocks(
            prompt,
            made,
            prefix=zeros if shared else None,
            block_tokens=block_tokens,
            prefix_tokens=zeros + shared if shared else None,
            session=talks,
        )
    return Trace(
        input_tokens=prompt,
        output_tokens=made,
        arrival_s=arrival,
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
    long = np.empty(0, np.int64)
    while long.sum() < count:
        long = np.concatenate([long, turns.draw_whole(rng, max(16, count // 4))])
    return np.repeat(np.arange(len(long)), long)[:count]


def _with_history(new: np.ndarray, made: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Whole prompts: what each turn adds, after everything that was said before it."""
    prompt = new.copy()
    for at, before in enumerate(after.tolist()):
        if before >= 0:
            prompt[at] += prompt[before] + made[before]
    return prompt


def _arrivals(rng: np.random.Generator, count: int, rate: Any, burstiness: Any) -> np.ndarray:
    """Gaps from a gamma distribution of mean 1/rate: 1 is Poisson, less comes in bursts, more is more even."""
    if not is_number(rate) or not rate > 0:
        raise BadValue(f"--request-rate must be a positive number of requests a second, or inf, not {abbreviate(rate)}")
    check_positive("--burstiness", burstiness, 1e6)
    if math.isinf(rate):
        return np.zeros(count)
    gaps = rng.gamma(burstiness, 1 / (rate * burstiness), count)
    gaps[:1] = 0.0  # the first one opens the run
    return np.cumsum(gaps)


def with_shared_prefix(trace: Trace, prefix_len: int) -> Trace:
    """The requests of a trace, whose first tokens are the same: ``beginning_alike(trace, 512)``"""
    shared = check_int("--prefix-len", prefix_len, least=0, most=TOKENS)
    if trace.blocks is not None:
        raise BadValue(f"--prefix-len {shared:,} says what {trace.source} says itself: which prompts begin alike")
    zeros = np.zeros(len(trace), np.int64)
    blocks = shared_blocks(trace.input_tokens, trace.output_tokens, prefix=zeros, prefix_tokens=zeros + shared)
    return msgspec.structs.replace(trace, blocks=blocks, block_tokens=BLOCK)


def with_users(trace: Trace, users: int | None, think_time: float | str, seed: int = 0) -> Trace:
    """The requests of a trace, sent in turn by so many users who think in between: ``of_users(trace, 8, 2.0)``"""
    if users is None or trace.after is not None:
        why = "is of users, whose number is --max-concurrency" if users is None else "stands in the trace itself"
        raise BadValue(f"--think-time {abbreviate(think_time)} {why}")
    pause = parse_distribution("--think-time", think_time, least=0, most=1e7)
    rng = np.random.default_rng(check_int("--seed", seed, least=0, most=2**63))
    after = np.maximum(np.arange(len(trace)) - users, -1)
    arrival = np.zeros(len(trace)) if trace.arrival_s is None else trace.arrival_s
    return msgspec.structs.replace(
        trace, arrival_s=arrival, after=after, think_s=np.where(after >= 0, pause.draw(rng, len(trace)), 0.0)
    )


def at_rate(trace: Trace, request_rate: float, burstiness: float = 1.0, seed: int = 0) -> Trace:
    """The requests of a trace, sent at another rate than they were: ``at_rate(trace, 8.0)``"""
    rng = np.random.default_rng(check_int("--seed", seed, least=0, most=2**63))
    return msgspec.structs.replace(trace, arrival_s=_arrivals(rng, len(trace), request_rate, burstiness))
