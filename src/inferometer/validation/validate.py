"""Measured against predicted: requests replayed one by one, and memory.

found = validate("llama-2-7b", gpu="rtx3090", measured="chat.csv")
found.errors["tpot"].mape        # 0.04: 4% off on average
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..base.errors import BadFile
from ..base.files import user_path
from ..base.tabular import column_names, read_table
from ..inference import memory
from ..inference.request import build_request
from ..serving.metrics import latencies, metrics
from ..serving.outcome import Outcome
from ..serving.simulate import simulate
from ..serving.trace import Trace, read_trace

MEASURED = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}  # metric -> column, in ms
MIB = 2.0**20
HELD = {
    "weights": "Weights (MB)",
    "kv_prefill": "KV Prefill (MB)",
    "kv_total": "KV Total (MB)",
    "kv_decode_delta": "KV Decode Delta (MB)",
}


class Errors(msgspec.Struct, kw_only=True):
    """How far predictions are from measurements: relative errors, 0.05 is 5%; a positive one is too slow."""

    mape: float | None = None  # mean of the absolute errors
    median_ape: float | None = None
    max_ape: float | None = None
    bias: float | None = None  # mean of the errors, signs kept
    pearson_r: float | None = None  # None where one side does not vary
    mean_error: float | None = None  # of the mean, which queues and long requests dominate
    measured_mean_ms: float | None = None
    predicted_mean_ms: float | None = None
    requests: int = 0


class Validation(msgspec.Struct, kw_only=True, eq=False):
    """A trace, what became of it in the simulation, and what was measured: ms per request, nan where there is none."""

    trace: Trace
    outcome: Outcome
    measured: dict[str, np.ndarray]
    predicted: dict[str, np.ndarray]
    errors: dict[str, Errors]

    def relative(self, metric: str) -> np.ndarray:
        """Relative errors of the requests, nan where one of both is missing."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found: np.ndarray = self.predicted[metric] / self.measured[metric] - 1
        return np.where(np.isfinite(found), found, np.nan)


def validate(model: str, gpu: str = "h100-sxm", *, measured: str | Path | Trace, **words: Any) -> Validation:
    """Replay measured requests and compare; the keywords are those of `simulate`.

    Requests with an ``arrival_s`` come when they came; others run one at a time. The clock stands at the engine, unless
    ``frontend="http"``.
    """
    trace = measured if isinstance(measured, Trace) else read_trace(measured)
    return compared(trace, simulate(model, gpu, trace=trace, **{"frontend": "in-process", **words}))


def compared(trace: Trace, outcome: Outcome) -> Validation:
    """What was measured beside what a simulation of the same requests gave."""
    truth = truths(trace)
    ours = latencies(outcome)
    found = {metric: errors(ours[metric], truth[metric]) for metric in truth}
    return Validation(trace=trace, outcome=outcome, measured=truth, predicted={m: ours[m] for m in truth}, errors=found)


def truths(trace: Trace) -> dict[str, np.ndarray]:
    """TTFT, TPOT and end-to-end latency in ms as measured; one that the file lacks follows from the other two."""
    have = trace.measured
    gaps = trace.output_tokens - 1
    found = {metric: have[column] for metric, column in MEASURED.items() if column in have}
    with np.errstate(divide="ignore", invalid="ignore"):
        if "tpot" not in found and {"ttft", "e2el"} <= set(found):
            found["tpot"] = (found["e2el"] - found["ttft"]) / gaps
        elif "e2el" not in found and {"ttft", "tpot"} <= set(found):
            found["e2el"] = found["ttft"] + np.where(gaps > 0, found["tpot"] * gaps, 0.0)
    if not found:
        raise BadFile(f"{trace.source} has no measurements: at least one of the columns TTFT, TPOT, E2E (ms)")
    if "tpot" in found:  # an answer of one token has none, whatever the file says
        found["tpot"] = np.where(gaps > 0, found["tpot"], np.nan)
    return {metric: found[metric] for metric in MEASURED if metric in found}


def errors(predicted: np.ndarray, measured: np.ndarray) -> Errors:
    """Statistics over the requests that have both: ``errors(np.array([11.0]), np.array([10.0])).mape  # 0.1``"""
    both = np.isfinite(predicted) & np.isfinite(measured) & (measured > 0)
    p, m = predicted[both], measured[both]
    if not len(p):
        return Errors()
    off = p / m - 1
    varied = len(p) > 1 and p.std() > 1e-12 * abs(p.mean()) and m.std() > 1e-12 * abs(m.mean())
    return Errors(
        mape=float(np.abs(off).mean()),
        median_ape=float(np.median(np.abs(off))),
        max_ape=float(np.abs(off).max()),
        bias=float(off.mean()),
        pearson_r=float(np.corrcoef(p, m)[0, 1]) if varied else None,
        mean_error=float(p.mean() / m.mean() - 1),
        measured_mean_ms=float(m.mean()),
        predicted_mean_ms=float(p.mean()),
        requests=len(p),
    )


def measured_metrics(found: Validation) -> dict[str, Any]:
    """What was measured, under the names of the benchmark: the run as it was."""
    if not {"ttft", "e2el"} <= set(found.measured):
        return {}
    outcome, arrival = found.outcome, found.outcome.arrival_s
    if found.trace.arrival_s is None:  # one after another, as fast as they ended then
        arrival = np.concatenate([[0.0], np.cumsum(found.measured["e2el"])[:-1] / 1e3])
    seen = msgspec.structs.replace(
        outcome,
        arrival_s=arrival,
        first_token_s=arrival + found.measured["ttft"] / 1e3,
        finished_s=arrival + found.measured["e2el"] / 1e3,
        rejected={},
        output_tokens=found.trace.output_tokens,
    )
    last = float(np.nanmax(seen.finished_s)) if np.isfinite(seen.finished_s).any() else 0.0
    return metrics(msgspec.structs.replace(seen, duration_s=last))


# ------------------------------------------------------------------ memory


class Held(msgspec.Struct, kw_only=True):
    """One measured amount of memory beside ours, bytes of one GPU."""

    what: str
    input_tokens: int
    output_tokens: int
    measured_bytes: float
    predicted_bytes: float
    error: float


def validate_memory(model: str, gpu: str = "h100-sxm", *, measured: str | Path, **words: Any) -> list[Held]:
    """Weights and KV cache against a table of measurements, whose MB are MiB."""
    path = user_path(str(measured))
    names = column_names(path)
    lacking = [name for name in ("Input_Tokens", "Output_Tokens") if name not in names]
    kinds = {what: column for what, column in HELD.items() if column in names}
    if lacking or not kinds:
        need = ", ".join(("Input_Tokens", "Output_Tokens"))
        raise BadFile(
            f"{path} has the columns {', '.join(names)[:200]}; measured memory has {need} and some of "
            f"{', '.join(HELD.values())}"
        )
    asked = build_request(model, gpu, **words)
    bound_plan = asked.bind()
    found: list[Held] = []
    for rows in read_table(path, ("Input_Tokens", "Output_Tokens", *kinds.values())):
        lengths = [rows.numbers(n, whole=True, most=10**8).tolist() for n in ("Input_Tokens", "Output_Tokens")]
        amounts = {what: rows.numbers(column, most=1e9).tolist() for what, column in kinds.items()}
        for at, (given, made) in enumerate(zip(*lengths, strict=True)):
            start = float(memory.cache_bytes(bound_plan, given))
            end = float(memory.cache_bytes(bound_plan, given + made))
            ours = {
                "weights": float(memory.weight_bytes(bound_plan)),
                "kv_prefill": start,
                "kv_total": end,
                "kv_decode_delta": end - start,
            }
            for what in kinds:
                truth = amounts[what][at] * MIB
                found.append(
                    Held(
                        what=what,
                        input_tokens=given,
                        output_tokens=made,
                        measured_bytes=truth,
                        predicted_bytes=ours[what],
                        error=ours[what] / truth - 1 if truth else float("nan"),
                    )
                )
    if not found:
        raise BadFile(f"{path} has a header but no measurements")
    return found
