"""The measurements that benchmarks and tests compare with, and where they lie.

    DATA / "h200_static.csv"                        travels with the project; data/README.md says whose it is
    closed_loops()[0]["ttft_s"]                     public servers under a closed loop, a dictionary a run
    elsewhere("measured/vllm015_h100.json")         None: a set without a licence is not part of the project

Sets of the last kind are optional: no claim of the README rests on them. They are looked for in the folder that
INFEROMETER_SHARED names (default: ``shared`` beside the repository); without it their tables stay as they stand.
"""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "data"

OPTIONAL = ("h100", "rtx3090")  # sets of servers that lie elsewhere: only their own tables are made of them


def elsewhere(name: str) -> Path | None:
    """Where a set lies that is not part of the project, or None."""
    path = Path(os.environ.get("INFEROMETER_SHARED", ROOT.parent / "shared")) / name
    return path if path.exists() else None


@cache
def closed_loops() -> tuple[dict[str, str], ...]:
    """Every run of closed_loops.csv, aggregated and disaggregated servers."""
    with (DATA / "closed_loops.csv").open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))
