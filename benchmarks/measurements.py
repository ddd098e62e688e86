"""The measurements that benchmarks and tests compare with, and where they lie.

    DATA / "h200_static.csv"                        travels with the project; data/README.md says whose it is
    closed_loops()[0]["ttft_s"]                     public servers under a closed loop, a dictionary a run
    elsewhere("measured/vllm015_h100.json")         None: a set without a licence is not part of the project

Sets of the last kind are optional: no claim of the README rests on them. They are looked for in the folder that
INFEROMETER_SHARED names (default: ``shared`` beside the repository); without it their tables stay as they stand.
"""

from __future__ import annotations

import csv
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from inferometer.specs import catalog

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "data"

_CUT = tempfile.TemporaryDirectory(prefix="inferometer-")  # configurations of models with fewer layers
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


def _is_cut(name: str) -> bool:
    models = catalog.names("models")
    return name not in models and name.rpartition("-")[0] in models


def measured_config(name: str) -> dict[str, Any]:
    """A model's configuration; the last number of a name may be that of its layers: ``"qwen3-235b-a22b-10"``."""
    base, _, layers = name.rpartition("-")
    return (
        {**catalog.model(base).config, "num_hidden_layers": int(layers)}
        if _is_cut(name)
        else catalog.model(name).config
    )


def measured_model(name: str) -> str:
    """The same as predictions take it: a name, or a file where the catalogue has another number of layers."""
    if not _is_cut(name):
        return name
    path = Path(_CUT.name) / name / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(measured_config(name)), encoding="utf-8")
    return str(path)
