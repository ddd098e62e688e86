"""What is odd about measurements: other units, columns that contradict each other, rows without times, rows twice.

measured_notes(validation)      # ["TTFT, TPOT are about 1,000 times shorter than predicted: …"]
"""

from __future__ import annotations

import numpy as np

from ..base.units import plural
from ..serving.trace import Trace
from ..specs.arguments import flag
from .validate import MEASURED, Validation

ABOUT_A_THOUSAND = (300.0, 3000.0)  # times by which latencies differ that were measured in another unit
CONTRADICTED = 2.0  # times by which TTFT and TPOT miss E2E where one of them is something else
TWICE = 0.05  # share of the rows: so many that are there twice are no chance


def measured_notes(validation: Validation) -> list[str]:
    """Sentences on the file, none for most. Benchmarks name their units, and are not asked."""
    trace = validation.trace
    if trace.run is not None:
        return []
    return [*_without_times(validation), *_other_units(validation), *_contradictions(trace), *_twice(trace)]


def _without_times(validation: Validation) -> list[str]:
    count = len(validation.trace)
    with_times = np.any([values > 0 for values in validation.measured.values()], axis=0)
    lacking = int(count - with_times.sum())
    if not lacking:
        return []
    are = "has" if lacking == 1 else "have"
    return [f"{lacking:,} of {plural(count, 'request')} {are} no times: they are simulated, but not compared"]


def _other_units(validation: Validation) -> list[str]:
    ratios = {}
    for metric, name in MEASURED.items():
        off = validation.relative(metric) if name in validation.trace.measured else np.zeros(0)
        if np.isfinite(off).any():
            ratios[name] = 1 + float(np.nanmedian(off))
    low, high = ABOUT_A_THOUSAND
    notes = []
    for unit, way, names in (
        ("s", "shorter", [name for name, ratio in ratios.items() if low <= ratio <= high]),
        ("us", "longer", [name for name, ratio in ratios.items() if low <= 1 / max(ratio, 1e-9) <= high]),
    ):
        if names:
            renamed = ",".join(f"{name.lower()}_{unit}=NAME" for name in names)
            word = {"s": "seconds", "us": "microseconds"}[unit]
            notes.append(
                f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} about 1,000 times {way} than predicted: if "
                f"they are {word}, say so with {flag('columns')} {renamed}"
            )
    return notes


def _contradictions(trace: Trace) -> list[str]:
    if not set(MEASURED.values()) <= trace.measured.keys():
        return []
    ttft, tpot, e2e = (trace.measured[name] for name in MEASURED.values())
    gaps = np.maximum(trace.output_tokens - 1, 0)
    summed = ttft + np.where(gaps > 0, tpot * gaps, 0.0)
    known = np.isfinite(summed) & (e2e > 0) & (summed > 0)
    ratio = float(np.median(summed[known] / e2e[known])) if known.any() else 1.0
    if 1 / CONTRADICTED <= ratio <= CONTRADICTED:
        return []
    return [
        f"TTFT + TPOT × (output tokens - 1) is {ratio:.3g} times E2E in the median row: one of them has another unit "
        "or meaning"
    ]


def _twice(trace: Trace) -> list[str]:
    if trace.arrival_s is None or not trace.measured:
        return []
    columns = (trace.arrival_s, trace.input_tokens, trace.output_tokens, *trace.measured.values())
    rows = np.nan_to_num(np.stack([np.asarray(column, float) for column in columns], axis=1), nan=-1.0)
    again = len(rows) - len(np.unique(rows, axis=0))
    if again < max(1, TWICE * len(rows)):
        return []
    return [f"{plural(again, 'row')} of {len(rows):,} repeat another one, down to its times: all of them are simulated"]
