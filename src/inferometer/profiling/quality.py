"""Rows that must not be used: faster than the device can be, or a floor of the host that hides the kernel.

A kernel's own time rises with its work from early on. Calls that are launched one by one wait for the host instead, and
take the same time whatever they do until the kernel is slower than its launch: many shapes pile up at one figure far
above their roofs, and those with half of it to do take no longer than the smallest. Where the same library was timed
in another way too, that shows it more directly: equal for large calls, several times faster for small ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..costs.kernels.kernel_rows import FLAG_MARK, SHAPE_DEFAULTS, KernelRow, shape_cells
from ..specs.structs import Hardware
from . import roofline_limits
from .importers import RowBatch
from .roofline_limits import GRACE

LAUNCH = 15e-6  # s: above what the start of one kernel takes on any device
CALLS = {
    "norm": 8,
    "rope": 8,
    "sampler": 8,
    "moe": 4,
    "all_to_all": 3,
    "activation": 3,
    "quantize": 3,
    "mla_prefill": 2,
    "mla_decode": 2,
}  # kernels in a row where a library has no single one
ENOUGH = 30  # rows that a group needs before it can be said to pile up
FLAT = 1.1  # the most that a floored time rises while the work grows to half of it; a kernel's own rises by a third
CLEAR = 1.5  # times the floor: slower rows show the kernel, not the host
ALIKE = 1.3  # two ways of timing one kernel agree within this where it is large


class HostFloor(NamedTuple):
    """A group of rows and the host time that its smallest ones show."""

    dtype: str
    source: str
    seconds: float
    rows: int


class TimingGroup(NamedTuple):
    """Rows of one number format and one source."""

    at: np.ndarray
    seconds: np.ndarray
    roof: np.ndarray
    level: float  # where they pile up; 0 if they do not
    flat: bool  # more work does not make them slower


def beyond_roof(seconds: np.ndarray, roof: np.ndarray) -> np.ndarray:
    """Which rows are faster than is possible."""
    return np.asarray(seconds < GRACE * roof)


def at_host_floor(
    kind: str,
    dtypes: Sequence[str],
    shapes: Sequence[str],
    sources: Sequence[str],
    seconds: np.ndarray,
    roof: np.ndarray,
) -> tuple[np.ndarray, list[HostFloor]]:
    """Which rows of a kind show the host instead of the kernel, and the floor of each group that has one."""
    indices: dict[tuple[str, str], list[int]] = {}
    for index, key in enumerate(zip(dtypes, sources, strict=True)):
        indices.setdefault(key, []).append(index)
    groups = {key: _group(np.array(at), seconds, roof, CALLS.get(kind, 1)) for key, at in indices.items()}
    marked, floors = np.zeros(len(seconds), bool), []
    for (dtype, source), group in groups.items():
        slow = np.zeros(len(group.at), bool)
        if group.flat:
            slow = group.seconds < CLEAR * group.level
        elif group.level:
            library = source.split()[:3]
            others = (groups[key] for key in groups if key[0] == dtype and key[1].split()[:3] == library)
            for other in others:
                slow |= _behind(group, other, shapes)
        if slow.any():
            marked[group.at[slow]] = True
            floors.append(HostFloor(dtype, source, group.level, int(slow.sum())))
    return marked, floors


def _group(at: np.ndarray, every: np.ndarray, roofs: np.ndarray, calls: int) -> TimingGroup:
    seconds, roof = every[at], roofs[at]
    nothing = TimingGroup(at, seconds, roof, 0.0, False)
    if len(at) < ENOUGH:
        return nothing
    large = roof >= np.quantile(roof, 0.9)
    work = roof * max(1.0, float(np.median(seconds[large] / np.maximum(roof[large], 1e-12))))  # at the pace it reaches
    small = roof <= np.quantile(roof, 0.25)
    level = float(np.median(seconds[small]))
    for _ in range(3):  # that quarter may reach too far up: look at what has next to nothing to do
        tiny = work < level / 10
        if tiny.sum() >= ENOUGH // 3:
            small, level = tiny, float(np.median(seconds[tiny]))
    piled = np.abs(seconds[small] / level - 1) < 0.25
    if level < LAUNCH * calls or piled.mean() < 0.6:
        return nothing
    grown = (work > level / 4) & (work < level / 2)
    flat = grown.sum() >= 3 and 1 / FLAT < float(np.median(seconds[grown])) / level < FLAT
    return TimingGroup(at, seconds, roof, level, flat)


def _behind(group: TimingGroup, other: TimingGroup, shapes: Sequence[str]) -> np.ndarray:
    """Rows that another way of timing shows to be slower than the kernel, if it shows the large ones to be equal."""
    none = np.zeros(len(group.at), bool)
    theirs = {shapes[i]: t for i, t in zip(other.at.tolist(), other.seconds, strict=True)}
    ratio = np.array([t / theirs.get(shapes[i], np.nan) for i, t in zip(group.at.tolist(), group.seconds, strict=True)])
    known = ~np.isnan(ratio)
    if other is group or known.sum() < ENOUGH:
        return none
    middle, high = np.quantile(group.roof[known], (0.5, 0.9))
    small, large = known & (group.roof <= middle), known & (group.roof >= high)
    hides = np.mean(ratio[small] > 2) > 0.8 and np.mean(np.abs(np.log(ratio[large])) < np.log(ALIKE)) > 0.8
    return np.asarray(known & (np.nan_to_num(ratio) > ALIKE)) if hides else none


# ------------------------------------------------------------------ rows marked and joined


class FlaggedRows(NamedTuple):
    """Rows ready to be written."""

    rows: list[KernelRow]
    counts: Counter[str]  # repeated, floor, roof
    notes: list[str]  # what was flagged, for people


def flag_rows(batches: Iterable[RowBatch], device: Hardware | None) -> FlaggedRows:
    """The rows of all tables; without a device none can be held against its roof, and so none is flagged."""
    flagged = FlaggedRows([], Counter(), [])
    for batch in _joined(batches):
        once, cells = _merged(batch)
        flagged.counts["repeated"] += len(batch.seconds) - len(once.seconds)
        slow, fast, notes = _flagged(once, cells, device)
        flagged.counts["floor"] += int(slow.sum())
        flagged.counts["roof"] += int(fast.sum())
        flagged.notes.extend(notes)
        tails = [
            f"{FLAG_MARK}floor" * s + f"{FLAG_MARK}roof" * f for s, f in zip(slow.tolist(), fast.tolist(), strict=True)
        ]
        sources = [source + tail for source, tail in zip(once.source, tails, strict=True)]
        columns = zip(once.dtype, cells, once.seconds.tolist(), sources, strict=True)
        flagged.rows.extend(KernelRow(once.kind, *row) for row in columns)
    return flagged


def _joined(batches: Iterable[RowBatch]) -> list[RowBatch]:
    """All rows of each kind together: a floor shows only in many."""
    groups: dict[str, list[RowBatch]] = defaultdict(list)
    for batch in batches:
        if len(batch.seconds):
            groups[batch.kind].append(batch)
    joined = []
    for kind, parts in groups.items():
        dims: dict[str, Sequence[Any]] = {}
        for key in dict.fromkeys(key for part in parts for key in part.dims):  # what a part lacks is its default there
            dims[key] = [
                cell for part in parts for cell in part.dims.get(key) or [SHAPE_DEFAULTS[key]] * len(part.seconds)
            ]
        dtypes, sources = [d for part in parts for d in part.dtype], [s for part in parts for s in part.source]
        joined.append(RowBatch(kind, dtypes, dims, np.concatenate([part.seconds for part in parts]), sources))
    return joined


def _merged(batch: RowBatch) -> tuple[RowBatch, list[str]]:
    """Of rows that agree in all but their time, one with the median; and the shapes as cells."""
    cells = shape_cells(batch.kind, batch.dims)
    places: dict[tuple[str, str, str], list[int]] = {}
    for index, key in enumerate(zip(batch.dtype, cells, batch.source, strict=True)):
        places.setdefault(key, []).append(index)
    if len(places) == len(batch.seconds):
        return batch, cells
    same = list(places.values())
    seconds = [batch.seconds[at[0]] if len(at) == 1 else float(np.median(batch.seconds[at])) for at in same]
    dims = {key: [cells[at[0]] for at in same] for key, cells in batch.dims.items()}
    dtypes, sources = [batch.dtype[at[0]] for at in same], [batch.source[at[0]] for at in same]
    return RowBatch(batch.kind, dtypes, dims, np.array(seconds), sources), [cells[at[0]] for at in same]


def _flagged(batch: RowBatch, cells: list[str], device: Hardware | None) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Which rows show the host, which are beyond the roof, and sentences about them."""
    if device is None:
        return np.zeros(len(cells), bool), np.zeros(len(cells), bool), []
    roof, dtypes = np.zeros(len(cells)), np.array(batch.dtype)
    columns = {key: np.array(values) for key, values in batch.dims.items()}
    for dtype in np.unique(dtypes).tolist():
        at = np.flatnonzero(dtypes == dtype)
        roof[at] = roofline_limits.least_seconds(
            batch.kind, dtype, {key: values[at] for key, values in columns.items()}, device
        )
    slow, floors = at_host_floor(batch.kind, batch.dtype, cells, batch.source, batch.seconds, roof)
    fast = beyond_roof(batch.seconds, roof)
    notes = [
        f"flagged !floor: {floor.rows:,} {batch.kind} {floor.dtype} rows of {floor.source}, which pile up at "
        f"{floor.seconds * 1e6:.3g} µs"
        for floor in floors
    ]
    quick = Counter(f"{batch.kind} {batch.dtype[i]} rows of {batch.source[i]}" for i in np.flatnonzero(fast).tolist())
    notes += [f"flagged !roof: {number:,} {rows}, faster than {device.name} can be" for rows, number in quick.items()]
    return slow, fast, notes
