"""vLLM 0.25.1 with Llama-3.1-8B on one H200: what the doctor names, and a calibration of one rate tried on others.

    python benchmarks/live_servers.py              all tables, some minutes
    python benchmarks/live_servers.py --doctor     four servers, three of them with a fault put in on purpose
    python benchmarks/live_servers.py --rates      loads of 4, 8 and 14 requests/s
    python benchmarks/live_servers.py --stretches  every 200 steps of one load, for an H200 and for two that it is not

The truth of a step is the difference between the moments at which its result and the one before were processed
(`done_s` of `*.steps.csv.gz`), the first after a pause left out. A decode step counts where no prompts follow it, for
else it ends with their launch. Steps with prompts count together with the decode steps that launch them and the one
after, whose predicted time is taken off.
"""

from __future__ import annotations

import csv
import gzip
import math
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import numpy as np
from measurements import DATA

from inferometer.serving.engine_time import Throttle
from inferometer.serving.logged_step import LoggedStep, StepLog
from inferometer.serving.metrics_page import ServerStatistics
from inferometer.serving.step_clock import StepBatch, StepClock
from inferometer.serving.step_log import read_step_log
from inferometer.serving.trace import Trace, first_requests, read_trace
from inferometer.specs.structs import Calibration
from inferometer.validation.causes import merged
from inferometer.validation.doctor import Diagnosis, diagnose
from inferometer.validation.fit_steps import fit_steps
from inferometer.validation.validate import Validation, validate

LIVE = DATA / "h200_live"
MODEL, GPU = "llama-3.1-8b", "h200"
PLAN: dict[str, Any] = {
    "engine": "vllm@0.25",
    "max_model_len": 16384,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
}
BLOCKS: dict[str, Any] = {"num_gpu_blocks_override": 6144}
HOSTS: dict[str, dict[str, Any]] = {"shipped": {}, "profiled": {"profile": str(DATA / "h200_machine_11.toml")}}
FAULTS = {"healthy": "", "eager": "eager", "smallkv": "kv_cache", "budget512": "token_budget"}
EVIDENCE = ("requests", "and steps", "and log", "and pages")
FITTED, TRIED = "r8", ("r8", "r4", "r14", "healthy")
STRETCH = 200  # steps
MISTAKEN = (GPU, f"{GPU}:memory_bandwidth=4.3e12", f"{GPU}:memory_bandwidth=5.3e12")  # it has 4.8e12


# ------------------------------------------------------------------ the doctor


def server_statistics(server: str, evidence: str) -> ServerStatistics | None:
    """What is known besides requests: the log's steps, the same with its first lines, or pages of /metrics."""
    if evidence == "requests":
        return None
    if evidence == "and pages":
        return read_step_log([LIVE / f"{server}.metrics.gz"], needs_steps=False).server
    log = read_step_log([LIVE / f"{server}.log.gz"]).server
    if log is None or evidence == "and log":
        return log
    return msgspec.structs.replace(log, enforce_eager=None, max_num_batched_tokens=math.nan)


def diagnosed(server: str, evidence: str, plan: Mapping[str, Any], count: int = 135) -> Diagnosis:
    """Of a server that should be as the healthy one is, by its first requests."""
    trace = first_requests(read_trace(LIVE / f"{server}.csv"), count)
    planned = {**PLAN, **BLOCKS, **plan}

    def replay(change: dict[str, Any]) -> Validation:
        options = merged(planned, change)
        return validate(MODEL, options.pop("gpu", GPU), measured=trace, **options)

    return diagnose(replay, replay({}), MODEL, GPU, planned, server_statistics(server, evidence))


def print_doctor() -> None:
    for host, profile in HOSTS.items():
        print(f"{'named first, host ' + host:26}" + "".join(f"{name:>20}" for name in EVIDENCE))
        for server in FAULTS:
            cells = []
            for evidence in EVIDENCE:
                made = diagnosed(server, evidence, profile)
                first = f"{made.causes[0].name} {made.causes[0].share:.0%}" if made.causes else ""
                cells.append(first or ("healthy" if made.healthy else "unexplained"))
            print(f"{server:26}" + "".join(f"{cell:>20}" for cell in cells))


# ------------------------------------------------------------------ rates


class TrueSteps(NamedTuple):
    """Steps as the log has them, with the recorder's moments."""

    steps: list[LoggedStep]
    seconds: np.ndarray  # from result to result
    starts: np.ndarray  # whether a step is the first after a pause


@cache
def true_steps(load: str) -> TrueSteps:
    """The recorder's steps beside those of the log, which leaves out empty ones."""
    log = read_step_log([LIVE / f"{load}.log.gz"]).steps
    with gzip.open(LIVE / f"{load}.steps.csv.gz", "rt", encoding="utf-8") as file:
        rows = [{name: float(text or "nan") for name, text in row.items()} for row in csv.DictReader(file)]
    steps: list[LoggedStep] = []
    moments, starts, paused = [], [], True
    for row in rows:
        if not row["prefill_tokens"] and not row["decode_seqs"]:
            paused = True
        elif len(steps) < len(log):
            step, done, context = log[len(steps)], row["done_s"], row["decode_kv"]
            assert row["prefill_tokens"] == step.prefill_tokens
            steps.append(step._replace(clock_s=done, decode_kv=context, prefill_cached=row["prefill_cached"]))
            moments.append(row["done_s"])
            starts.append(paused)
            paused = False
    return TrueSteps(steps, np.diff(moments, prepend=math.nan), np.array(starts))


def stamped(load: str, first: int = 0, count: int | None = None) -> StepLog:
    """The log with the moment of every result, as it is where something stamps each line: `docker logs -t`."""
    steps = true_steps(load).steps[first : None if count is None else first + count]
    return StepLog(steps=steps, kind="stamped", source=f"{load}.log", kv_cache_tokens=98_304)


def predicted_steps(load: str, plan: Mapping[str, Any], gpu: str = GPU) -> np.ndarray:
    """Seconds of each step by itself, each after the ones before it as they are predicted."""
    clock = StepClock(MODEL, gpu, **PLAN, **plan)
    cost, now, ahead, seconds = clock.stages[0], 0.0, 0.0, []
    throttle = Throttle(cost.throttle_after or 1.0)
    for step, starts in zip(*true_steps(load)[::2], strict=True):
        ahead = 0.0 if starts else ahead
        prompts, decoding = round(step.prefill_seqs), round(step.decode_seqs)
        decodes = [max(1, round(step.decode_kv / max(1, decoding)))] * decoding
        late = 0.0
        if prompts:
            chunks = [(round(step.prefill_tokens / prompts), round(step.prefill_cached / prompts))] * prompts
            hot = throttle.fraction_at(now)
            took = clock.step_ms(StepBatch(chunks, decodes), ahead=ahead, thermal_state=hot) / 1e3
            new = round(step.prefill_tokens)
            throttle.add_load(now, took, new / (new + decoding), hot)
            late = min(max(0.0, cost.host_seconds(new, decoding, prompts + decoding) - ahead), took)
        else:
            hot = throttle.fraction_at(now)
            took = clock.step_ms(StepBatch((), decodes), thermal_state=hot) / 1e3
        seconds.append(took)
        now, ahead = now + took, took - late
    return np.array(seconds)


def step_errors(load: str, plan: Mapping[str, Any], gpu: str = GPU) -> dict[str, tuple[float, float, int]]:
    """Error of the sum, mean absolute error and count of decode steps and of runs of steps with prompts."""
    steps, true, starts = true_steps(load)
    ours = predicted_steps(load, plan, gpu)
    prompts = np.array([step.prefill_tokens > 0 for step in steps])
    near_start = starts | np.append(starts[1:], True)
    decode = ~prompts & ~np.append(prompts[1:], False) & ~near_start
    pairs = list(_runs(prompts, near_start, true, ours))
    both = {"decode": (true[decode], ours[decode]), "prompts": tuple(np.array(pairs).T)}
    return {
        name: (float(b.sum() / a.sum() - 1), float(np.abs(b / a - 1).mean()), len(a)) for name, (a, b) in both.items()
    }


def _runs(
    prompts: np.ndarray, skipped: np.ndarray, true: np.ndarray, ours: np.ndarray
) -> Iterator[tuple[float, float]]:
    """True and predicted seconds of the prompts' steps between two decode steps that launch no prompts."""
    launches = prompts | np.append(prompts[1:], False)
    for is_run, group in groupby(range(len(prompts)), key=lambda k: bool(launches[k])):
        run = np.array(list(group))
        if not is_run or run[-1] + 1 >= len(prompts) or skipped[run[0] : run[-1] + 2].any():
            continue
        decode = np.append(run[~prompts[run]], run[-1] + 1)  # the one after: where the host is late, it is shorter
        whole = true[run[0] : run[-1] + 2].sum() - ours[decode].sum()
        yield float(whole), float(ours[run[prompts[run]]].sum())


def request_errors(load: str, plan: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Error of the mean and mean absolute error of TTFT, TPOT and E2E; what the prefix cache had is put into it."""
    trace = read_trace(LIVE / f"{load}.csv")
    with (LIVE / f"{load}.csv").open(encoding="utf-8") as file:
        cached = np.array([int(row["cached_tokens"]) for row in csv.DictReader(file)])
    if cached.any():
        trace = with_cached(trace, cached)
    made = validate(MODEL, GPU, measured=trace, **PLAN, **BLOCKS, **plan)
    return {name: (one.mean_error or 0.0, one.mape or 0.0) for name, one in made.errors.items()}


def with_cached(trace: Trace, cached: np.ndarray) -> Trace:
    """The requests a minute later, after others that leave so many tokens of their prompts in the cache."""
    before = np.flatnonzero(cached)
    counts = np.append(cached[before], trace.input_tokens) // 16
    tokens = [range(1000 * k, 1000 * k + count) for k, count in zip(before, counts, strict=False)]
    tokens += [range(1000 * k, 1000 * k + count) for k, count in enumerate(counts[len(before) :])]
    unmeasured = np.full(len(before), math.nan)
    assert trace.arrival_s is not None
    return msgspec.structs.replace(
        trace,
        input_tokens=np.append(cached[before] + 1, trace.input_tokens),
        output_tokens=np.append(np.ones(len(before), int), trace.output_tokens),
        arrival_s=np.append(60 * np.arange(len(before)) / len(before), trace.arrival_s + 60),
        blocks=tuple(np.array(ids, int) for ids in tokens),
        block_tokens=16,
        measured={name: np.append(unmeasured, column) for name, column in trace.measured.items()},
    )


def print_rates() -> None:
    titles = ("steps", "decode", "±", "prompts", "±", "TTFT", "TPOT", "E2E")
    for host, profile in HOSTS.items():
        plan = {**PLAN, **profile}
        log = read_step_log([LIVE / f"{FITTED}.log.gz"])
        fits = {
            "none": Calibration(),
            "log": fit_steps(MODEL, GPU, log, plan).calibration,
            "stamped, 200 steps": fit_steps(MODEL, GPU, stamped(FITTED, 0, STRETCH), plan).calibration,
            "stamped": fit_steps(MODEL, GPU, stamped(FITTED), plan).calibration,
        }
        for name, made in fits.items():
            figures = {key: round(getattr(made, key), 3) for key in ("prefill", "decode", "mixed", "host")}
            print(f"\nhost {host}, calibration {name}: {figures}")
            print(f"{'load':10}" + "".join(f"{title:>9}" for title in titles))
            for load in TRIED:
                more = {**profile, "calibration": made}
                steps, requests = step_errors(load, more), request_errors(load, more)
                cells = [f"{steps['decode'][2]:,}+{steps['prompts'][2]}"]
                cells += [
                    f"{x:+.1%}" if k == 0 else f"{x:.1%}" for one in steps.values() for k, x in enumerate(one[:2])
                ]
                cells += [f"{requests[metric][0]:+.1%}" for metric in ("ttft", "tpot", "e2el")]
                print(f"{load:10}" + "".join(f"{cell:>9}" for cell in cells))


def print_stretches() -> None:
    """What a calibration from any 200 steps is worth, where predictions are right and where they are 10% off."""
    for gpu in MISTAKEN:
        plain = {load: step_errors(load, {}, gpu) for load in TRIED[1:]}
        starts = range(0, len(true_steps(FITTED).steps) - STRETCH, STRETCH)
        made = [fit_steps(MODEL, gpu, stamped(FITTED, k, STRETCH), PLAN).calibration for k in starts]
        factors = [one.decode for one in made]
        print(f"\n{gpu}: decode × {min(factors):.3f} to {max(factors):.3f} from {len(made)} stretches of {FITTED}")
        print(f"{'load':10}{'':>10}{'plain':>9}{'worst':>9}{'mean':>9}")
        for load in TRIED[1:]:
            tried = [step_errors(load, {"calibration": one}, gpu) for one in made]
            for kind in ("decode", "prompts"):
                off = [one[kind][0] for one in tried]
                worst, mean = max(off, key=abs), np.mean(np.abs(off))
                print(f"{load:10}{kind:>10}{plain[load][kind][0]:>+9.1%}{worst:>+9.1%}{mean:>9.1%}")


if __name__ == "__main__":
    parts = {"--doctor": print_doctor, "--rates": print_rates, "--stretches": print_stretches}
    for flag, show in parts.items():
        if flag in sys.argv or not parts.keys() & set(sys.argv):
            show()
