"""A calibration from a user's own measurements: two factors and a time per request, fitted robustly.

Predictions of a loaded server are not linear in these (a slower step makes queues), so the simulation is run again with
each of them moved both ways, and the residuals are followed downhill: a few Gauss-Newton steps with weights that leave
outliers alone. The moves are wide at first: a small one only shifts requests across the borders of steps, and what a
TTFT gains or loses by that is noise around its slope. Errors on unseen rows come from leaving out a fifth of the
requests at a time.

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
NUDGES = (0.3, 0.2, 0.1, 0.1, 0.05, 0.05)  # how far each parameter is moved both ways for its slopes, by round
PRIOR = np.array([0.7, 0.7, 2.0])  # standard deviation of each parameter before anything was measured
FOLDS = 5
ITERATIONS = 20  # of reweighted least squares, with each kind of weights
LIMIT = np.array([3.0, 3.0, 500.0])
FREE = (
    [1, 1, 1],
    [0, 1, 0],
    [1, 0, 1],
)  # parameters that a step moves: all; if that helps nothing, those of one metric
OUTLIER = 4.0  # medians: a residual counts as no more than so many of them
LEAST_NOISE = 0.005  # of a residual: what no timing is better than
GAIN = 0.02  # share of an error that must go on unseen rows, and that none may grow by

Replay = Callable[[Calibration], Validation]


class Fit(NamedTuple):
    """A calibration, the comparison before and after it, and errors of rows that it was not fitted to."""

    calibration: Calibration
    before: Validation
    after: Validation
    unseen: dict[str, float]  # metric -> mean absolute relative error
    robust_errors: dict[str, tuple[float, float]]  # metric -> before, and on unseen rows; outliers count little

    def objection(self) -> str:
        """Why it is not worth writing, '' if it is: unseen rows must gain by it, and none of TTFT and TPOT lose."""
        changes = {metric.upper(): (was, now) for metric, (was, now) in self.robust_errors.items()}
        lost = {name: pair for name, pair in changes.items() if pair[1] > pair[0] * (1 + GAIN) + 5e-4}
        if lost or not any(now < was * (1 - GAIN) - 5e-4 for was, now in changes.values()):
            shown = [
                f"{name} {was:.1%} off before and {now:.1%} after" for name, (was, now) in (lost or changes).items()
            ]
            return f"the calibration does not help on rows that were left out ({', '.join(shown)})"
        return ""


def fit_calibration(replay: Replay, before: Validation) -> Fit:
    """Fit to the measured TTFT and TPOT (end to end follows from them); ``replay`` simulates under a calibration.

    ``fit_calibration(lambda c: validate("qwen3-8b", "h200", measured=path, calibration=c), before).calibration.decode``
    """
    known = _known(before)
    if not known.any():
        raise BadValue("a calibration needs measured TTFT or TPOT of requests that the simulation ends, and has none")
    parameters, now = START, before
    for nudge in NUDGES:
        slopes = _slopes(replay, parameters, nudge)
        for free in FREE:
            step = _gauss_newton_step(slopes * free, _residuals(now), parameters, known, len(now.trace)) * free
            if (better := _line_search(replay, parameters, now, step, before)) is not None:
                parameters, now = better
                break
    unseen, robust_errors = _unseen_errors(before, now, slopes, parameters, known)
    return Fit(_calibration(parameters), before, now, unseen, robust_errors)


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


def _robust_error(residuals: np.ndarray) -> float:
    """Mean of the absolute residuals, where an outlier counts as a few medians."""
    sizes = np.abs(residuals)
    return float(np.minimum(sizes, OUTLIER * np.median(sizes) + 0.02).mean())


def _by_metric(validation: Validation, residuals: np.ndarray, known: np.ndarray) -> dict[str, np.ndarray]:
    """The known residuals of each metric that has some."""
    parts = np.split(np.arange(len(residuals)), max(1, len(_metrics(validation))))
    pairs = zip(_metrics(validation), parts, strict=False)
    return {metric: residuals[part][known[part]] for metric, part in pairs if known[part].any()}


def _robust_errors(validation: Validation) -> dict[str, float]:
    parts = _by_metric(validation, _residuals(validation), _known(validation))
    return {metric: _robust_error(part) for metric, part in parts.items()}


# ------------------------------------------------------------------ the fit


def _slopes(replay: Replay, parameters: np.ndarray, nudge: float) -> np.ndarray:
    """How the residuals move with each parameter: [residual, parameter]."""
    ends = [[replay(_calibration(parameters + way * nudge * axis)) for way in (1, -1)] for axis in np.eye(3)]
    return np.stack([(_residuals(up) - _residuals(down)) / (2 * nudge) for up, down in ends], axis=1)


def _gauss_newton_step(
    slopes: np.ndarray, residuals: np.ndarray, parameters: np.ndarray, rows: np.ndarray, count: int
) -> np.ndarray:
    """One robust step: iteratively reweighted least squares with Huber's weights, and the prior as a ridge.

    Each metric, of ``count`` requests, has its own noise: a TTFT scatters with the steps that it waits for, a TPOT
    hardly does.
    """
    a, r = slopes[rows], residuals[rows]
    metric = (np.arange(len(residuals)) // count)[rows]
    prior = np.diag(PRIOR**-2.0)
    step = np.zeros(3)
    for number in range(2 * ITERATIONS):
        left = r + a @ step
        noise = np.full(len(r), LEAST_NOISE)  # nearly least absolute errors at first, which no outlier leads astray
        for part in set(metric.tolist()) if number >= ITERATIONS else ():  # then the MAD as a standard deviation
            noise[metric == part] = max(1.4826 * float(np.median(np.abs(left[metric == part]))), LEAST_NOISE)
        weight = np.minimum(1.0, 1.345 * noise / np.maximum(np.abs(left), 1e-12)) / noise**2
        step = np.linalg.solve(a.T @ (weight[:, None] * a) + prior, -(a.T @ (weight * r)) - prior @ parameters)
    return np.clip(step, -1.0, 1.0)


def _line_search(
    replay: Replay, parameters: np.ndarray, now: Validation, step: np.ndarray, before: Validation
) -> tuple[np.ndarray, Validation] | None:
    """The step, or half or a quarter of it, whichever first makes the errors smaller; None if none does.

    Queues can make a full step overshoot. A metric that fits well is never made worse than it was `before` to help the
    other one. The sum of logarithms, because the metrics' noises differ.
    """
    first, here = _robust_errors(before), _robust_errors(now)
    for share in (1.0, 0.5, 0.25):
        tried = np.clip(parameters + share * step, -LIMIT, LIMIT)
        reached = replay(_calibration(tried))
        errors = _robust_errors(reached)
        if errors.keys() != here.keys() or any(errors[m] > first[m] + 1e-4 for m in errors):
            continue
        if sum(np.log((errors[m] + LEAST_NOISE) / (here[m] + LEAST_NOISE)) for m in errors) < -1e-4:
            return tried, reached
    return None


def _unseen_errors(
    before: Validation, now: Validation, slopes: np.ndarray, parameters: np.ndarray, known: np.ndarray
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Errors of each fifth of the requests when fitted to the other four, to first order around the whole fit."""
    base, count = _residuals(now), len(now.trace)
    fold = np.tile(np.arange(count) % FOLDS, len(_metrics(now)))
    left = base.copy()
    for number in range(min(FOLDS, count)):
        held_out = fold == number
        if (known & ~held_out).any():
            step = _gauss_newton_step(slopes, base, parameters, known & ~held_out, count)
            left[held_out] = (base + slopes @ step)[held_out]
    parts, first = _by_metric(now, left, known), _robust_errors(before)
    unseen = {metric: float(np.abs(np.expm1(part)).mean()) for metric, part in parts.items() if count > 1}
    return unseen, {metric: (first[metric], _robust_error(part)) for metric, part in parts.items() if metric in first}


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
