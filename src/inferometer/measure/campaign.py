"""``profile --kernels``: check what was asked, measure within the budget, say what came of it."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import BadFile, BadValue, UnknownName
from ..files import local
from .progress import Progress, lines

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def span(text: str) -> float:
    """Seconds of a budget: ``span("10m")  # 600.0``"""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip().lower())
    if not found or not 0 < float(found[1]) < math.inf:
        raise BadValue(f"--budget must be a time such as 90s, 10m or 1h, not {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def profile_kernels(output: str, budget: str, device: str, say: Callable[[str], None],
                    progress: Progress | None = None, kinds: str | None = None) -> dict[str, int]:  # fmt: skip
    """Measure the shapes that the file lacks; every row is written as it is found, so nothing is lost when it stops.

    ``profile_kernels("kernels.csv", "10m", "cuda", print, kinds="linear,moe")``; ``progress`` moves a bar, without it a
    line is said now and then.
    """
    seconds, wanted = span(budget), chosen(kinds)
    if device not in ("cuda", "cpu"):
        raise UnknownName("--device", device, ("cuda", "cpu"))
    path = local(output)
    if path.is_dir() or not path.parent.is_dir():
        raise BadFile(f"{path} cannot be written: it is a folder, or its folder is not there")
    if importlib.util.find_spec("torch") is None:
        raise BadValue("profile needs PyTorch, which is not installed here")
    torch = importlib.import_module("torch")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadValue("profile finds no CUDA device here; --device cpu measures the processor")
    return _measured(torch, path, seconds, device, say, progress, wanted)


def chosen(kinds: str | None) -> set[str]:
    """The kinds of kernel that ``--kinds`` names, all without it: ``chosen("linear,moe")``"""
    from .kernels import CASES

    if kinds is None:
        return set(CASES)
    found = {word.strip() for word in kinds.split(",") if word.strip()}
    for word in sorted(found - set(CASES)):
        raise UnknownName("kind of kernel in --kinds", word, CASES)
    if not found:
        raise BadValue("--kinds needs at least one kind of kernel, such as linear,moe")
    return found


def _measured(torch: Any, path: Path, seconds: float, device: str, say: Callable[[str], None],
              progress: Progress | None, wanted: set[str]) -> dict[str, int]:  # fmt: skip
    from . import clock, grid, limits, machine, run

    about = machine.describe(torch, device)
    record = machine.Record(path, about)
    run_now: dict[str, Any] = {"began": machine.now(), "before": machine.clocks(torch, device), "budget": seconds}
    versions = ", ".join(f"{word} {about[word]}" for word in ("torch", "cuda", "vllm") if about.get(word))
    say(f"{about['device']}: {versions}")
    where = run.bench(device, about)
    roof = limits.find(where, about)
    how = {"replays": clock.REPLAYS, "rotation_bytes": where.rotation, "data": "random", **roof.said()}
    ranks = tuple(n for n in grid.RANKS if n <= torch.cuda.device_count()) if device == "cuda" else (2,)
    rows = [r for r in grid.everything(ranks, "" if device == "cuda" else "gloo") if r["kind"] in wanted]
    outcome = run.Outcome()
    words: dict[str, Any] = {"budget": seconds, "device": device, "where": where, "roof": roof, "outcome": outcome}
    try:
        run.measure(rows, path, progress=progress or lines(say), say=say, **words)
    finally:  # a run that is broken off has a record, too
        record.write({**run_now, "ended": machine.now(), "after": machine.clocks(torch, device), **how,
                      "kinds": sorted(wanted), "counts": outcome.counts, "reasons": outcome.reasons})  # fmt: skip
    counts = ", ".join(f"{number:,} {word}" for word, number in outcome.counts.items() if number)
    say(f"wrote {path} and {record.path.name}: {counts or 'nothing'}")
    return outcome.counts
