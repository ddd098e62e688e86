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
    """Logarithms of predicted and measured latencies; what one side lacks is nan.

    Predicted ones may have axes before that of requests (or figures): several predictions of the same ones.
    """

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


def gap(logs: LatencyLogs) -> float:
    """Mean distance of requests, of their distributions and of figures of the run."""
    return float(gaps(logs))


def gaps(logs: LatencyLogs) -> np.ndarray:
    """The `gap` of each of several predictions."""
    parts: list[Any] = []
    for predicted, measured in logs.requests.values():
        known = _known(predicted)
        both = known & ~np.isnan(measured)
        if both.any():
            ours, theirs = predicted[..., both], measured[both]
            parts += [_distance(ours, theirs), _distance(_quantiles(ours), _quantiles(theirs))]
        lost = ~np.isnan(measured) & ~known
        parts += [_CAP] if lost.mean() > 0.5 else []
    predicted, measured = logs.figures
    both = _known(predicted) & ~np.isnan(measured)
    parts += [_distance(predicted[..., both], measured[both])] if both.any() else []
    return np.broadcast_to(sum(parts) / max(len(parts), 1), predicted.shape[:-1])


def _known(predicted: np.ndarray) -> np.ndarray:
    """Which requests have a latency: all predictions have it of the same ones."""
    return ~np.isnan(predicted[(0,) * (predicted.ndim - 1)])


def _quantiles(logs: np.ndarray) -> np.ndarray:
    """As np.quantile, faster."""
    ordered, at = np.sort(logs), _SHARES * (logs.shape[-1] - 1)
    low = np.minimum(at.astype(int), max(logs.shape[-1] - 2, 0))
    values: np.ndarray = ordered[..., low]
    return values + (at - low) * (ordered[..., np.minimum(low + 1, logs.shape[-1] - 1)] - values)


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    mean: np.ndarray = np.minimum(np.abs(a - b), _CAP).mean(-1)
    return mean


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
                left_by_value = gaps(self._moved(self._moved(logs, others), {name: (grid - had[name])[:, None]}))
                for value, left in zip(grid.tolist(), left_by_value.tolist(), strict=True):
                    if left < least - 1e-9:
                        chosen, least = {**chosen, name: value}, left
            if least == was:
                break
        return chosen, least

    def _moved(self, logs: LatencyLogs, by: Mapping[str, Any]) -> LatencyLogs:
        requests, figures = dict(logs.requests), logs.figures
        for name, step in by.items():
            if np.any(step):
                effect = self.effects[name]
                requests = {
                    metric: (predicted + step * effect.requests[metric][0], measured)
                    for metric, (predicted, measured) in requests.items()
                }
                figures = (figures[0] + step * effect.figures[0], figures[1])
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
