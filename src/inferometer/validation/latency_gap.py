"""How far measured latencies are from predicted ones, and how much of it the usual error of step times explains.

logs = latency_logs(before, now)
gap(logs)                              # 0.1 is about 10%
StepErrors(replay, before, 1.0).fit(logs)   # ({'prefill': 0.04, 'decode': -0.03, …}, 0.06)

Formulas of steps are off by some per cent on every machine, and a queue multiplies that. So before a cause is looked
for, prompts, decode steps, the host and the front end may all be a little slower or faster than predicted, alike in
all requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..specs.structs import Calibration
from .validate import Validation

Change = dict[str, Any]  # arguments of `simulate`
Replay = Callable[[Change], Validation]
FIGURES: tuple[str, ...] = (
    *("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "median_tpot_ms"),
    *("mean_itl_ms", "p99_itl_ms", "mean_e2el_ms"),
)
STEP_ERRORS = {"prefill": 0.12, "decode": 0.08, "host": 0.35}  # logarithms up to which step times are usually off
REQUEST_ERROR = 0.005  # s up to which a front end is usually off
CALIBRATED = 1 / 3  # share of them that is left once the machine was calibrated
_PROBE = {"prefill": 0.05, "decode": 0.04, "host": 0.2, "request": 0.003}  # at which the effect of each is measured
_GRID = np.linspace(-1.0, 1.0, 9)  # of each bound
_ROUNDS = 3  # in which one factor after the other is set
_CAP = 1.5  # of a logarithm: what is further off counts no more
_SHARES = np.linspace(0.05, 0.95, 10)  # of the requests, at which distributions are compared


class LatencyLogs(NamedTuple):
    """Logarithms of predicted and measured latencies; what one side lacks is nan."""

    requests: dict[str, tuple[np.ndarray, np.ndarray]]  # metric -> predicted, measured
    figures: tuple[np.ndarray, np.ndarray]


def latency_logs(before: Validation, now: Validation) -> LatencyLogs:
    """A simulation beside what was measured: ``latency_logs(before, before).requests["ttft"]``"""
    requests: dict[str, tuple[np.ndarray, np.ndarray]] = {
        metric: (_log(now.predicted[metric]), _log(before.measured[metric]))
        for metric in ("ttft", "tpot")
        if metric in before.measured
    }
    names = [name for name in FIGURES if name in before.figures]
    ours = [now.figures[name].predicted if name in now.figures else 0.0 for name in names]
    return LatencyLogs(requests, (_log(ours), _log([before.figures[name].measured for name in names])))


def _log(values: Any) -> np.ndarray:
    ms = np.asarray(values, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs: np.ndarray = np.where(ms > 0, np.log(ms), np.nan)
    return np.where(np.isfinite(logs), logs, np.nan)


def comparable(logs: LatencyLogs) -> bool:
    """Whether any latency is both predicted and measured."""
    return any(
        (np.isfinite(ours) & np.isfinite(theirs)).any() for ours, theirs in (*logs.requests.values(), logs.figures)
    )


def gap(logs: LatencyLogs) -> float:
    """Mean distance of requests, of their distributions and of figures of the run."""
    return float(_gaps(logs))


def _gaps(logs: LatencyLogs) -> np.ndarray:
    """The same of several predictions at once, which are rows."""
    parts = []
    for predicted, measured in logs.requests.values():
        lacking = np.isnan(_first_row(predicted))  # alike in all rows
        both = ~lacking & ~np.isnan(measured)
        if both.any():
            ours, theirs = predicted[..., both], measured[both]
            parts += [_distance(ours, theirs), _distance(_quantiles(ours), _quantiles(theirs))]
        lost = ~np.isnan(measured) & lacking
        parts += [np.array(_CAP)] if lost.mean() > 0.5 else []
    predicted, measured = logs.figures
    both = ~np.isnan(_first_row(predicted)) & ~np.isnan(measured)
    parts += [_distance(predicted[..., both], measured[both])] if both.any() else []
    rows = predicted.shape[:-1]  # where no request completes, every part is one number
    means: np.ndarray = np.mean([np.broadcast_to(part, rows) for part in parts or [np.zeros(())]], axis=0)
    return means


def _first_row(logs: np.ndarray) -> np.ndarray:
    return logs if logs.ndim == 1 else logs[0]


def _quantiles(logs: np.ndarray) -> np.ndarray:
    at = _SHARES * (logs.shape[-1] - 1)  # as np.quantile, faster
    below = np.minimum(at.astype(int), max(0, logs.shape[-1] - 2))
    above = np.minimum(below + 1, logs.shape[-1] - 1)
    ordered = np.sort(logs, axis=-1)
    quantiles: np.ndarray = ordered[..., below] + (at - below) * (ordered[..., above] - ordered[..., below])
    return quantiles


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    distance: np.ndarray = np.minimum(np.abs(a - b), _CAP).mean(axis=-1)
    return distance


class StepErrors:
    """What step times that are off by their usual error do to every latency; ``share`` of that error is allowed."""

    def __init__(self, replay: Replay, before: Validation, share: float) -> None:
        bounds = {**STEP_ERRORS, "request": REQUEST_ERROR}
        self.grids = {
            name: share * bound * (_GRID[_GRID >= 0] if name == "request" else _GRID) for name, bound in bounds.items()
        }
        base = latency_logs(before, before)
        self.effects = {
            name: _difference(latency_logs(before, replay(as_change({name: step}))), base, step)
            for name, step in _PROBE.items()
        }

    def fit(self, logs: LatencyLogs, start: Mapping[str, float] | None = None) -> tuple[dict[str, float], float]:
        """The errors within the bounds that leave the smallest gap, and that gap, if their effects add up.

        ``start`` are errors that the logs already have. See `as_change`.
        """
        had = {name: (start or {}).get(name, 0.0) for name in self.grids}
        chosen, least = dict(had), gap(logs)
        for _ in range(_ROUNDS):
            was = least
            for name, grid in self.grids.items():
                others = {key: chosen[key] - had[key] for key in chosen if key != name}
                left = _gaps(self._moved(logs, {**others, name: grid - had[name]}))
                nearest = int(left.argmin())
                if left[nearest] < least - 1e-9:
                    chosen, least = {**chosen, name: float(grid[nearest])}, float(left[nearest])
            if least == was:
                break
        return chosen, least

    def _moved(self, logs: LatencyLogs, by: Mapping[str, float | np.ndarray]) -> LatencyLogs:
        """With these errors; one that has several values makes rows."""
        requests, figures = dict(logs.requests), logs.figures
        for name, step in by.items():
            if np.ndim(step) or step:
                effect = self.effects[name]
                requests = {
                    metric: (predicted + np.multiply.outer(step, effect.requests[metric][0]), measured)
                    for metric, (predicted, measured) in requests.items()
                }
                figures = (figures[0] + np.multiply.outer(step, effect.figures[0]), figures[1])
        return LatencyLogs(requests, figures)


def as_change(errors: Mapping[str, float]) -> Change:
    """Errors of step times, logarithms but for the request's seconds, as arguments; {} if all are 0.

    ``as_change({"prefill": 0.05})  # {"calibration": Calibration(prefill=1.051)}``
    """
    if not any(errors.values()):
        return {}
    prefill, decode, host = (math.exp(errors.get(name, 0.0)) for name in STEP_ERRORS)
    return {
        "calibration": Calibration(prefill=prefill, decode=decode, host=host, request=errors.get("request", 0.0)),
    }


def _difference(moved: LatencyLogs, base: LatencyLogs, step: float) -> LatencyLogs:
    """By how much each logarithm moves for a step of 1; 0 where one side lacks it."""
    requests = {
        metric: (np.nan_to_num((moved.requests[metric][0] - predicted) / step), measured)
        for metric, (predicted, measured) in base.requests.items()
    }
    return LatencyLogs(requests, (np.nan_to_num((moved.figures[0] - base.figures[0]) / step), base.figures[1]))
