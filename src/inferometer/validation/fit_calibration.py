"""A calibration from a user's own measurements: two factors and a time per request, fitted robustly.

Predictions of a loaded server are not linear in these (a slower step makes queues), so the simulation is run again with
each of them moved a little, and the residuals are followed downhill: a few Gauss-Newton steps with weights that leave
outliers alone. Errors on unseen rows come from leaving out a fifth of the requests at a time.

The parameters are one vector of three: ln(prefill factor), ln(decode factor), and seconds per request in `UNIT`. The
residuals are ln(predicted / measured) of every request's TTFT, then of every request's TPOT.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue
from ..specs.structs import Calibration
from .validate import Validation

START = np.zeros(3)
UNIT = 0.01  # s per request that weigh as much as 1 in a factor's logarithm
NUDGE = 0.02  # how far each parameter is moved for its slope
PRIOR = np.array([0.7, 0.7, 2.0])  # standard deviation of each parameter before anything was measured
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


def fit_calibration(replay: Replay, before: Validation) -> Fit:
    """Fit to the measured TTFT and TPOT (end to end follows from them); ``replay`` simulates under a calibration.

    ``fit_calibration(lambda c: validate("qwen3-8b", "h200", measured=path, calibration=c), before).calibration.decode``
    """
    known = _known(before)
    if not known.any():
        raise BadValue("a calibration needs measured TTFT or TPOT of requests that the simulation ends, and has none")
    parameters, now = START, before
    slopes = _slopes(replay, parameters, now)
    for _ in range(ROUNDS):
        step = _gauss_newton_step(slopes, _residuals(now), parameters, known)
        better = _line_search(replay, parameters, now, step)
        if better is None:
            break
        parameters, now = better
        slopes = _slopes(replay, parameters, now)
        if np.abs(step).max() < 0.003:
            break
    return Fit(_calibration(parameters), before, now, _unseen_errors(now, slopes, parameters, known))


def _calibration(parameters: np.ndarray) -> Calibration:
    prefill, decode = np.exp(parameters[:2])
    return Calibration(prefill=float(prefill), decode=float(decode), request=float(parameters[2]) * UNIT)


# ------------------------------------------------------------------ residuals


def _metrics(validation: Validation) -> list[str]:
    return [metric for metric in ("ttft", "tpot") if metric in validation.measured]


def _log_ratios(validation: Validation) -> np.ndarray:
    """ln(predicted / measured): a tenth too slow weighs as much as a tenth too fast. Not finite where unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [np.log(validation.predicted[m] / validation.measured[m]) for m in _metrics(validation)]
    return np.concatenate([*ratios, np.empty(0)])


def _known(validation: Validation) -> np.ndarray:
    """Which residuals there are: a request may lack a measurement, or not have ended."""
    known: np.ndarray = np.isfinite(_log_ratios(validation))
    return known


def _residuals(validation: Validation) -> np.ndarray:
    """The log ratios, zero where there is none."""
    ratios = _log_ratios(validation)
    return np.where(np.isfinite(ratios), ratios, 0.0)


def _median_error(validation: Validation) -> float:
    """Median of the absolute log ratios that are known."""
    ratios = _log_ratios(validation)
    return float(np.median(np.abs(ratios[np.isfinite(ratios)])))


# ------------------------------------------------------------------ the fit


def _slopes(replay: Replay, parameters: np.ndarray, now: Validation) -> np.ndarray:
    """How the residuals move with each parameter: [residual, parameter]."""
    base = _residuals(now)
    nudged = [_residuals(replay(_calibration(parameters + NUDGE * axis))) for axis in np.eye(3)]
    return np.stack([(residuals - base) / NUDGE for residuals in nudged], axis=1)


def _gauss_newton_step(
    slopes: np.ndarray, residuals: np.ndarray, parameters: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """One robust step: iteratively reweighted least squares with Huber's weights, and the prior as a ridge."""
    a, r = slopes[rows], residuals[rows]
    prior = np.diag(PRIOR**-2.0)
    step = np.zeros(3)
    for _ in range(20):
        left = r + a @ step
        noise = max(1.4826 * float(np.median(np.abs(left))), 0.01)  # the MAD as a standard deviation
        weight = np.minimum(1.0, 1.345 * noise / np.maximum(np.abs(left), 1e-12)) / noise**2
        again = np.linalg.solve(a.T @ (weight[:, None] * a) + prior, -(a.T @ (weight * r)) - prior @ parameters)
        if np.abs(again - step).max() < 1e-6:
            break
        step = again
    return np.clip(again, -1.0, 1.0)


def _line_search(
    replay: Replay, parameters: np.ndarray, now: Validation, step: np.ndarray
) -> tuple[np.ndarray, Validation] | None:
    """The step, or half or a quarter of it, whichever first makes the median residual smaller; None if none does.

    Queues can make a full step overshoot. The median, because the mean of a few outliers would veto a step that the
    weights chose in spite of them.
    """
    before = _median_error(now)
    for share in (1.0, 0.5, 0.25):
        tried = np.clip(parameters + share * step, -LIMIT, LIMIT)
        reached = replay(_calibration(tried))
        if _median_error(reached) < before * (1 - 1e-4):
            return tried, reached
    return None


def _unseen_errors(now: Validation, slopes: np.ndarray, parameters: np.ndarray, known: np.ndarray) -> dict[str, float]:
    """Errors of each fifth of the requests when fitted to the other four, to first order around the whole fit."""
    base, count = _residuals(now), len(now.trace)
    fold = np.tile(np.arange(count) % FOLDS, len(_metrics(now)))
    left = base.copy()
    for number in range(min(FOLDS, count)):
        held_out = fold == number
        if (known & ~held_out).any():
            step = _gauss_newton_step(slopes, base, parameters, known & ~held_out)
            left[held_out] = (base + slopes @ step)[held_out]
    errors: dict[str, float] = {}
    for at, metric in enumerate(_metrics(now)):
        part = slice(at * count, (at + 1) * count)
        if known[part].any() and count > 1:
            errors[metric] = float(np.abs(np.expm1(left[part][known[part]])).mean())
    return errors


def with_provenance(fit: Fit, model: str, gpu: str, engine: str) -> Calibration:
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
