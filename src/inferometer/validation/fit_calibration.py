"""A correction from a user's own measurements: two factors and a time per request, fitted robustly.

Predictions of a loaded server are not linear in these (a slower step makes queues), so the simulation is run again with
each of them moved a little, and the residuals are followed downhill: a few Gauss-Newton steps with weights that leave
outliers alone. Errors on unseen rows come from leaving out a fifth of the requests at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue
from ..specs.structs import Calibration
from .validate import Validation

START = np.zeros(3)  # logarithms of both factors, and seconds in units of `UNIT`
UNIT = 0.01  # s per request that weigh as much as 1 in a factor's logarithm
NUDGE = 0.02  # how far each is moved to see what it does
DOUBT = np.array([0.7, 0.7, 2.0])  # how far each may be expected to be off before anything was measured
FOLDS = 5
ROUNDS = 6
LIMIT = np.array([3.0, 3.0, 500.0])

Replay = Callable[[Calibration], Validation]


class Fit(NamedTuple):
    """A calibration, the comparison before and after it, and errors of rows that it was not fitted to."""

    calibration: Calibration
    before: Validation
    after: Validation
    unseen: dict[str, float]  # metric -> mean absolute relative error


def calibrate(replay: Replay, before: Validation) -> Fit:
    """Fit to the measured TTFT and TPOT (end to end follows from them); ``replay`` simulates under a calibration."""
    there = _there(before)
    if not there.any():
        raise BadValue("a calibration needs measured TTFT or TPOT of requests that the simulation ends, and has none")
    place, now = START, before
    slopes = _slopes(replay, place, now)
    for _ in range(ROUNDS):
        step = _step(slopes, _residuals(now), place, there)
        tried, reached = _improved(replay, place, now, step)
        if reached is None:
            break
        place, now = tried, reached
        slopes = _slopes(replay, place, now)
        if np.abs(step).max() < 0.003:
            break
    return Fit(_calibration(place), before, now, _unseen(now, slopes, place, there))


def _calibration(place: np.ndarray) -> Calibration:
    return Calibration(prefill=float(np.exp(place[0])), decode=float(np.exp(place[1])), request=float(place[2]) * UNIT)


def _logs(found: Validation, metric: str) -> np.ndarray:
    """Logarithms of predicted over measured; a tenth too slow weighs as much as a tenth too fast."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs: np.ndarray = np.log(found.predicted[metric] / found.measured[metric])
    return logs


def _metrics(found: Validation) -> list[str]:
    return [m for m in ("ttft", "tpot") if m in found.measured]


def _there(found: Validation) -> np.ndarray:
    """Which residuals there are: a request may lack a measurement, or not have ended."""
    there: np.ndarray = np.isfinite(np.concatenate([_logs(found, m) for m in _metrics(found)] or [np.empty(0)]))
    return there


def _residuals(found: Validation) -> np.ndarray:
    """Of TTFT and TPOT, one after the other; zero where there is none."""
    logs = np.concatenate([_logs(found, m) for m in _metrics(found)])
    return np.where(np.isfinite(logs), logs, 0.0)


def _slopes(replay: Replay, place: np.ndarray, now: Validation) -> np.ndarray:
    """How the residuals move with each of the three."""
    base = _residuals(now)
    moved = [_residuals(replay(_calibration(place + NUDGE * axis))) for axis in np.eye(3)]
    return np.stack([(m - base) / NUDGE for m in moved], axis=1)


def _step(slopes: np.ndarray, residuals: np.ndarray, place: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """One robust Gauss-Newton step: reweighted least squares (Huber), held back to what was expected beforehand."""
    a, r = slopes[rows], residuals[rows]
    step = np.zeros(3)
    for _ in range(20):
        left = r + a @ step
        noise = max(1.4826 * float(np.median(np.abs(left))), 0.01)
        weight = np.minimum(1.0, 1.345 * noise / np.maximum(np.abs(left), 1e-12)) / noise**2
        prior = np.diag(DOUBT**-2.0)
        again = np.linalg.solve(a.T @ (weight[:, None] * a) + prior, -(a.T @ (weight * r)) - prior @ place)
        if np.abs(again - step).max() < 1e-6:
            break
        step = again
    return np.clip(again, -1.0, 1.0)


def _improved(
    replay: Replay, place: np.ndarray, now: Validation, step: np.ndarray
) -> tuple[np.ndarray, Validation | None]:
    """The step, or half or a quarter of it, if it makes the median residual smaller; queues can make it overshoot."""
    for share in (1.0, 0.5, 0.25):
        tried = np.clip(place + share * step, -LIMIT, LIMIT)
        reached = replay(_calibration(tried))
        if np.abs(_residuals(reached)).mean() < np.abs(_residuals(now)).mean() * (1 - 1e-4):
            return tried, reached
    return place, None


def _unseen(now: Validation, slopes: np.ndarray, place: np.ndarray, there: np.ndarray) -> dict[str, float]:
    """Errors of each fifth of the requests when fitted to the other four, to first order around the whole fit."""
    base, count = _residuals(now), len(now.trace)
    fold = np.tile(np.arange(count) % FOLDS, len(_metrics(now)))
    left = base.copy()
    for number in range(min(FOLDS, count)):
        mine = fold == number
        if (there & ~mine).any():
            left[mine] = (base + slopes @ _step(slopes, base, place, there & ~mine))[mine]
    found: dict[str, float] = {}
    for at, metric in enumerate(_metrics(now)):
        part = slice(at * count, (at + 1) * count)
        if there[part].any() and count > 1:
            found[metric] = float(np.abs(np.expm1(left[part][there[part]])).mean())
    return found


def signed(fit: Fit, model: str, gpu: str, engine: str) -> Calibration:
    """The calibration with what it was made for and from, and its errors."""
    before, after = fit.before.errors, fit.after.errors
    error = {
        metric: {
            "before": float(before[metric].mape or 0.0),
            "after": float(after[metric].mape or 0.0),
            **({"unseen": fit.unseen[metric]} if metric in fit.unseen else {}),
        }
        for metric in before
    }
    trace = fit.before.trace
    return msgspec.structs.replace(
        fit.calibration, model=model, gpu=gpu, engine=engine, measured=trace.source, requests=len(trace), error=error
    )
