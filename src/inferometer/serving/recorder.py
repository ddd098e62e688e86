"""What an engine looked like over time: a few thousand points, however long the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .engine import EngineCore

POINTS = 4000  # kept at most; when they are twice as many, every second one is dropped
COLUMNS = ("time_s", "running", "waiting", "kv_used", "tokens_per_s", "busy", "batch_tokens")


class Recorder:
    """Looks at a replica from time to time, ever more seldom as the run grows long."""

    def __init__(self, apart: float = 0.0) -> None:
        self.due = 0.0
        self.apart = apart  # seconds between two looks
        self.tell: Callable[[], None] | None = None  # somebody who wants to know that time passes
        self.rows: list[tuple[float, int, int, float, int, float, int]] = []

    def look(self, replica: EngineCore) -> None:
        """Note how things stand."""
        cache = replica.cache
        self.rows.append(
            (
                replica.now,
                len(replica.running),
                len(replica.waiting),
                1 - cache.free / cache.blocks,
                replica.computed,
                replica.busy,
                replica.steps,
            )
        )
        if len(self.rows) >= 2 * POINTS:
            self.rows = self.rows[1::2]
            self.apart = max(2 * self.apart, (self.rows[-1][0] - self.rows[0][0]) / len(self.rows))
        self.due = replica.now + self.apart
        if self.tell is not None and len(self.rows) % 100 == 0:
            self.tell()

    def series(self) -> dict[str, np.ndarray]:
        """Columns over time; rates are those since the point before."""
        if not self.rows:
            return {name: np.zeros(0) for name in COLUMNS}
        rows = self.rows if len(self.rows) <= POINTS else self.rows[1::2]
        time, running, waiting, used, computed, busy, steps = np.array(rows, float).T
        apart = np.maximum(np.diff(time, prepend=0.0), 1e-12)
        tokens, did = np.diff(computed, prepend=0.0), np.diff(steps, prepend=0.0)
        return {
            "time_s": time,
            "running": running,
            "waiting": waiting,
            "kv_used": used,
            "tokens_per_s": tokens / apart,
            "busy": np.minimum(np.diff(busy, prepend=0.0) / apart, 1.0),
            "batch_tokens": tokens / np.maximum(did, 1),
        }


def merge_series(series: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Several replicas as one: sums of requests and tokens, means of shares, at times that all have."""
    some = [one for one in series if len(one["time_s"])]
    if len(series) == 1 or not some:
        return series[0] if series else Recorder().series()
    time = np.unique(np.concatenate([one["time_s"] for one in some]))
    time = time[:: -(-len(time) // POINTS)]
    found = {"time_s": time}
    for name in COLUMNS[1:]:
        each = [_at(one, name, time) for one in some]
        share = name in ("kv_used", "busy")
        found[name] = np.sum(each, axis=0) / (len(series) if share else 1)
    return found


def _at(one: dict[str, np.ndarray], name: str, time: np.ndarray) -> np.ndarray:
    """The value that held at each time: nothing before the first point and after the last."""
    place = np.searchsorted(one["time_s"], time)
    found: np.ndarray = np.where(place < len(one["time_s"]), one[name][np.minimum(place, len(one[name]) - 1)], 0.0)
    return found
