"""What the tests of ``profile --import`` share: small tables on disk, and what they are imported as."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferometer.profiling.import_tables import import_tables

Rows = dict[tuple[str, str], tuple[str, float, str]]  # (kind, shape) -> dtype, seconds, source


def table(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """A CSV file of these rows; what one lacks is an empty cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def take(path: Path, gpu: str | None = None, output: str = "out.csv") -> tuple[Rows, dict[str, int], list[str]]:
    """What a path is imported as: the rows, the counts, what was said."""
    said: list[str] = []
    place = path.parent / output if path.is_file() else path.parent / f"{path.name}-{output}"
    counts = import_tables(str(path), str(place), gpu=gpu, say=said.append)
    with place.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    rows = {(r["kind"], r["shape"]): (r["dtype"], float(r["seconds"]), r["source"]) for r in lines}
    assert len(lines) == counts["imported"] + counts["kept"]
    return rows, counts, said


def aic(
    op: str,
    *rows: dict[str, Any],
    kernel: str = "k",
    device: str = "NVIDIA H200",
    framework: str = "VLLM",
) -> list[dict[str, Any]]:
    """Rows as AIConfigurator writes them."""
    who = {"framework": framework, "version": "0.24.0", "device": device, "op_name": op, "kernel_source": kernel}
    return [{**who, **row} for row in rows]


def stats(**medians: float | str) -> dict[str, float | str]:
    """Medians as Vidur writes them, with figures beside them that are not to be taken."""
    return {
        f"time_stats.{op}.{word}": value if word == "median" else 99
        for op, value in medians.items()
        for word in ("min", "median", "std")
    }
