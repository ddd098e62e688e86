"""``profile --kernels``: check what was asked, measure within the budget, say what came of it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from ..errors import BadFile, BadValue, UnknownName

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def span(text: str) -> float:
    """Seconds of a budget: ``span("10m")  # 600.0``"""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip().lower())
    if not found or float(found[1]) <= 0:
        raise BadValue(f"--budget must be a time such as 90s, 10m or 1h, not {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def profile_kernels(output: str, budget: str, device: str, say: Callable[[str], None]) -> dict[str, int]:
    """Measure the shapes that the file lacks; every row is written as it is found, so nothing is lost when it stops."""
    seconds = span(budget)
    if device not in ("cuda", "cpu"):
        raise UnknownName("--device", device, ("cuda", "cpu"))
    path = Path(output).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise BadFile(f"{path} cannot be written: it is a folder, or its folder is not there")
    if importlib.util.find_spec("torch") is None:
        raise BadValue("profile needs PyTorch, which is not installed here")
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise BadValue("profile finds no CUDA device here; --device cpu measures the processor")
    from . import grid
    from .run import machine, measure

    say(machine(device))
    rows = grid.everything()

    def progress(number: int, whole: int, spent: float) -> None:
        say(f"{number:,} of {whole:,} shapes, {spent:.0f} s")

    counts = measure(rows, path, budget=seconds, device=device, progress=progress)
    say(f"wrote {path}: " + ", ".join(f"{number:,} {word}" for word, number in counts.items() if number))
    return counts
