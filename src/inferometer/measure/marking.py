"""Rows of many tables as one: joined by kind, repeats merged, and what must not be used flagged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..spec import Hardware
from . import flags, roofs
from .kinds import DEFAULTS, MARK, shapes
from .profile import Row
from .readers import Batch


class Marked(NamedTuple):
    """Rows ready to be written."""

    rows: list[Row]
    counts: Counter[str]  # repeated, floor, roof
    notes: list[str]  # what was flagged, for people


def marked(batches: Iterable[Batch], device: Hardware | None) -> Marked:
    """The rows of all tables; without a device none can be held against its roof, and so none is flagged."""
    found = Marked([], Counter(), [])
    for batch in _joined(batches):
        once, cells = _merged(batch)
        found.counts["repeated"] += len(batch.seconds) - len(once.seconds)
        slow, fast, notes = _flagged(once, cells, device)
        found.counts["floor"] += int(slow.sum())
        found.counts["roof"] += int(fast.sum())
        found.notes.extend(notes)
        tails = [f"{MARK}floor" * s + f"{MARK}roof" * f for s, f in zip(slow.tolist(), fast.tolist(), strict=True)]
        sources = [source + tail for source, tail in zip(once.source, tails, strict=True)]
        columns = zip(once.dtype, cells, once.seconds.tolist(), sources, strict=True)
        found.rows.extend(Row(once.kind, *row) for row in columns)
    return found


def _joined(batches: Iterable[Batch]) -> list[Batch]:
    """All rows of each kind together: a floor shows only in many."""
    groups: dict[str, list[Batch]] = defaultdict(list)
    for batch in batches:
        if len(batch.seconds):
            groups[batch.kind].append(batch)
    joined = []
    for kind, parts in groups.items():
        dims: dict[str, Sequence[Any]] = {}
        for key in dict.fromkeys(key for part in parts for key in part.dims):  # what a part lacks is its default there
            dims[key] = [cell for part in parts for cell in part.dims.get(key) or [DEFAULTS[key]] * len(part.seconds)]
        dtypes, sources = [d for part in parts for d in part.dtype], [s for part in parts for s in part.source]
        joined.append(Batch(kind, dtypes, dims, np.concatenate([part.seconds for part in parts]), sources))
    return joined


def _merged(batch: Batch) -> tuple[Batch, list[str]]:
    """Of rows that agree in all but their time, one with the median; and the shapes as cells."""
    cells = shapes(batch.kind, batch.dims)
    places: dict[tuple[str, str, str], list[int]] = {}
    for index, key in enumerate(zip(batch.dtype, cells, batch.source, strict=True)):
        places.setdefault(key, []).append(index)
    if len(places) == len(batch.seconds):
        return batch, cells
    same = list(places.values())
    seconds = [batch.seconds[at[0]] if len(at) == 1 else float(np.median(batch.seconds[at])) for at in same]
    dims = {key: [cells[at[0]] for at in same] for key, cells in batch.dims.items()}
    dtypes, sources = [batch.dtype[at[0]] for at in same], [batch.source[at[0]] for at in same]
    return Batch(batch.kind, dtypes, dims, np.array(seconds), sources), [cells[at[0]] for at in same]


def _flagged(batch: Batch, cells: list[str], device: Hardware | None) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Which rows show the host, which are beyond the roof, and sentences about them."""
    if device is None:
        return np.zeros(len(cells), bool), np.zeros(len(cells), bool), []
    roof, dtypes = np.zeros(len(cells)), np.array(batch.dtype)
    columns = {key: np.array(values) for key, values in batch.dims.items()}
    for dtype in np.unique(dtypes).tolist():
        at = np.flatnonzero(dtypes == dtype)
        roof[at] = roofs.seconds(batch.kind, dtype, {key: values[at] for key, values in columns.items()}, device)
    slow, floors = flags.floored(batch.kind, batch.dtype, cells, batch.source, batch.seconds, roof)
    fast = flags.beyond_roof(batch.seconds, roof)
    notes = [f"flagged !floor: {found.rows:,} {batch.kind} {found.dtype} rows of {found.source}, which pile up at "
             f"{found.seconds * 1e6:.3g} µs" for found in floors]  # fmt: skip
    quick = Counter(f"{batch.kind} {batch.dtype[i]} rows of {batch.source[i]}" for i in np.flatnonzero(fast).tolist())
    notes += [f"flagged !roof: {number:,} {rows}, faster than {device.name} can be" for rows, number in quick.items()]
    return slow, fast, notes
