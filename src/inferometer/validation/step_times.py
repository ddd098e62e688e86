"""What a step of an engine took itself, and on which contexts, where its log does not say so line by line.

steps = list(with_contexts(log.steps, capacity, token_budget))
steps = own_times(from_result_to_result(steps, host_seconds), predicted)

All of these take the steps of one engine, in their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ..serving.logged_step import LoggedStep
from ..serving.vllm_log import LEAP

LEAST = 12  # steps of a class that a figure is fitted to; one of a log's lines may stand for many
READY = 1e-4  # s of a wait for a result that was there before
MOST_READY = 4  # steps in a row, the last of them waited for: where more are not, the host decides
TICK_ERROR, HOST_SPREAD = 0.005, 0.15  # s; and share by which launches of two kinds are off differently
ROUNDS = 30


def with_contexts(steps: Sequence[LoggedStep], capacity: float, token_budget: float) -> Iterator[LoggedStep]:
    """Contexts, from the share of the KV cache in use where a log has no more.

    vLLM before 0.26 says that share every 10 s. In between tokens are counted: those of prompts come in and one for
    every sequence that decodes, and with a sequence that ends the mean context of all goes out.
    """
    usage, running = math.nan, 0.0
    held = math.nan if not steps or steps[0].decode_seqs else 0.0
    for step in steps:
        if step.decode_seqs < running:
            held *= step.decode_seqs / running
        before, held = held, held + step.prefill_tokens + step.decode_seqs
        goes_on = step.prefill_seqs > 0 and step.prefill_tokens + step.decode_seqs >= token_budget  # the last prompt
        running = step.decode_seqs + step.prefill_seqs - goes_on
        if math.isfinite(step.kv_usage) and not (step.stream and step.kv_usage == usage):
            usage, held = step.kv_usage, step.kv_usage * capacity
            before = held - step.prefill_tokens - step.prefill_cached
        kv = step.decode_kv if math.isfinite(step.decode_kv) else before
        yield step._replace(decode_kv=max(kv, step.decode_seqs) if math.isfinite(kv) else math.nan)


def from_result_to_result(steps: Sequence[LoggedStep], host_seconds: Sequence[float]) -> list[LoggedStep]:
    """Seconds of steps of which the log has the wait alone, and the clock in whole seconds.

    vLLM plans and launches the step after this one, and only then waits for this one's result (`step_with_batch_queue`
    of vllm/v1/engine/core.py): to the wait belongs what the *next* step keeps the host busy, least before one that
    decodes. The clock's ticks say how much of it there is: two factors on the host's predicted time, one before steps
    with prompts and one before others, which are alike unless the ticks say otherwise.
    """
    following = [*steps[1:], steps[-1]]
    waits, clocks = (np.array([getattr(step, name) for step in steps]) for name in ("wait_s", "clock_s"))
    is_prompt = np.array([step.prefill_tokens > 0 for step in following])
    busy = np.array([*host_seconds[1:], host_seconds[-1]])
    work = np.stack([np.where(is_prompt, 0.0, busy), np.where(is_prompt, busy, 0.0)], axis=1)
    starts = np.flatnonzero([not step.decode_seqs for step in steps])  # after a pause, perhaps
    if (clocks % 1 > 0).any():  # lines are stamped with more than seconds: that is when results came
        gaps = np.diff(clocks, prepend=clocks[0])
        possible = (gaps >= 0) & (gaps < waits + LEAP)  # elsewhere the clock was set, or lines are missing
        return [
            step._replace(
                seconds=float(gap if fits else step.wait_s),
                whole=bool(fits and gap > 0 and number not in starts),  # the first has none before it
            )
            for number, (step, gap, fits) in enumerate(zip(steps, gaps, possible, strict=True))
        ]
    lines, times = [], []
    for begin, end in pairwise([0, *starts.tolist(), len(steps)]):
        ticks = begin + 1 + np.flatnonzero(np.diff(clocks[begin:end]) > 0)  # each within a step
        for i, j in pairwise(ticks.tolist()):
            halves, between = [i, j], slice(i + 1, j)
            lines.append(work[between].sum(axis=0) + work[halves].sum(axis=0) / 2)
            times.append(clocks[j] - clocks[i] - waits[between].sum() - waits[halves].sum() / 2)
    if len(lines) < LEAST:  # all that was added is uncertain
        return [step._replace(uncertain_s=step.seconds - step.wait_s) for step in steps]
    factors, errors = _host_factors(np.array(lines), np.array(times))
    added = zip((work @ factors).tolist(), (work @ errors).tolist(), strict=True)
    return [
        step._replace(seconds=step.wait_s + more, uncertain_s=error, whole=number not in starts)
        for number, (step, (more, error)) in enumerate(zip(steps, added, strict=True))
    ]


def _host_factors(work: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Robust least squares, and standard deviations: pauses are outliers, and factors that differ must be worth it."""
    middle = float(np.median(times / work.sum(axis=1)))
    factors: np.ndarray = np.full(2, middle)
    prior = np.eye(2) / (HOST_SPREAD * middle) ** 2
    for _ in range(ROUNDS):
        off = np.abs(times - work @ factors)
        noise = max(TICK_ERROR, 1.4826 * float(np.median(off)))
        weights = np.minimum(1.0, 1.345 * noise / np.maximum(off, 1e-9)) / noise**2
        right = work.T @ (weights * times) + prior.sum(axis=1) * middle
        precision = work.T @ (weights[:, None] * work) + prior
        factors = np.linalg.solve(precision, right)
    return factors.clip(0.0), np.sqrt(np.diag(np.linalg.inv(precision)))


def own_times(steps: Sequence[LoggedStep], predicted: np.ndarray) -> list[LoggedStep]:
    """What each step takes itself, of seconds from one result to the next.

    A result that is there at once came before its wait: the host was still launching the next step. So only from a
    step that was waited for to the next such step times add up. Decode steps among them take what others do, and the
    step with prompts the rest. Where the host is never waited for, what it does is what a step takes.
    """
    seconds = np.array([step.seconds for step in steps])
    ready = np.array([step.wait_s <= READY for step in steps])
    decode = np.array([step.whole and not step.prefill_tokens for step in steps])
    known = decode & ~ready & ~np.roll(ready, 1) & np.isfinite(predicted)
    typical = predicted * (float(np.median(seconds[known] / predicted[known])) if known.sum() >= LEAST else 1.0)
    own, begin = list(steps), 0
    for end in range(1, len(steps) + 1):
        if end < len(steps) and ready[end - 1] and steps[end].decode_seqs:
            continue
        chain, begin = range(begin, end), end
        prompts = [i for i in chain if steps[i].prefill_tokens]
        if len(chain) == 1 or len(chain) > MOST_READY or not (prompts or known.sum()):
            continue
        rest = seconds[chain.start : end].sum() - sum(typical[i] for i in chain if i not in prompts)
        for i in chain:
            its = rest if i in prompts else typical[i]
            whole = [i] == prompts and rest > 0 and all(steps[k].whole for k in chain)
            error = sum(steps[k].uncertain_s for k in chain)
            own[i] = steps[i]._replace(seconds=float(its if its > 0 else seconds[i]), whole=whole, uncertain_s=error)
    return own
