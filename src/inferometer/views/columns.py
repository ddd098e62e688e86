"""Plain text tables for listings: aligned columns, nothing else to load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def plain_table(rows: list[dict[str, Any]], shown: Callable[[str, Any], str]) -> str:
    """``plain_table([{"name": "h200", "memory": 150.11e9}], shown)``"""
    if not rows:
        return "nothing here\n"
    keys = list(rows[0])
    cells = [[shown(k, row.get(k)) for k in keys] for row in rows]
    right = [all(isinstance(row.get(k), int | float | None) for row in rows) for k in keys]
    widths = [max(len(k), *(len(line[i]) for line in cells)) for i, k in enumerate(keys)]

    def line(values: list[str]) -> str:
        pieces = [v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right, strict=True)]
        return "  ".join(pieces).rstrip() + "\n"

    return line(keys) + line(["─" * w for w in widths]) + "".join(line(c) for c in cells)
