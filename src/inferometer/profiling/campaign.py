"""How far a run has come, for those who are not looking at a bar: a line now and then."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from ..base.errors import BadFile, BadValue, UnknownName
from ..base.files import user_path
from ..specs import catalog
from . import limits, timer
from .machine import describe, rotation
from .microbenchmarks import CASES, Bench, Library, Ready, reason
from .profile_csv import Sheet, done, shape_of

Progress = Callable[[int, int, str], None]  # done, of how many, and the time spent or what is next, in words
EVERY = 10.0  # s between lines


def lines(say: Callable[[str], None], what: str = "shapes") -> Progress:
    """A line at the start and then every ten seconds: ``lines(print)(7, 1000, "12 of 60 s")``"""
    last = -float("inf")

    def progress(number: int, whole: int, words: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY:
            last = now
            say(f"{number:,} of {whole:,} {what}, {words}")

    return progress


# ------------------------------------------------------------------ campaign
# ``profile --kernels``: check what was asked, measure within the budget, say what came of it.


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def span(text: str) -> float:
    """Seconds of a budget: ``span("10m")  # 600.0``"""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip().lower())
    if not found or not 0 < float(found[1]) < math.inf:
        raise BadValue(f"--budget must be a time such as 90s, 10m or 1h, not {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def profile_kernels(
    output: str,
    budget: str,
    device: str,
    say: Callable[[str], None],
    progress: Progress | None = None,
    kinds: str | None = None,
) -> dict[str, int]:
    """Measure the shapes that the file lacks; every row is written as it is found, so nothing is lost when it stops.

    ``profile_kernels("kernels.csv", "10m", "cuda", print, kinds="linear,moe")``; ``progress`` moves a bar, without it a
    line is said now and then.
    """
    seconds, wanted = span(budget), chosen(kinds)
    if device not in ("cuda", "cpu"):
        raise UnknownName("--device", device, ("cuda", "cpu"))
    path = user_path(output)
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
    from .microbenchmarks import CASES

    if kinds is None:
        return set(CASES)
    found = {word.strip() for word in kinds.split(",") if word.strip()}
    for word in sorted(found - set(CASES)):
        raise UnknownName("kind of kernel in --kinds", word, CASES)
    if not found:
        raise BadValue("--kinds needs at least one kind of kernel, such as linear,moe")
    return found


def _measured(
    torch: Any,
    path: Path,
    seconds: float,
    device: str,
    say: Callable[[str], None],
    progress: Progress | None,
    wanted: set[str],
) -> dict[str, int]:
    from . import limits, machine, shapes, timer

    about = machine.describe(torch, device)
    record = machine.Record(path, about)
    run_now: dict[str, Any] = {"began": machine.now(), "before": machine.clocks(torch, device), "budget": seconds}
    versions = ", ".join(f"{word} {about[word]}" for word in ("torch", "cuda", "vllm") if about.get(word))
    say(f"{about['device']}: {versions}")
    where = bench(device, about)
    roof = limits.find(where, about)
    how = {"replays": timer.REPLAYS, "rotation_bytes": where.rotation, "data": "random", **roof.said()}
    ranks = tuple(n for n in shapes.RANKS if n <= torch.cuda.device_count()) if device == "cuda" else (2,)
    rows = [r for r in shapes.everything(ranks, "" if device == "cuda" else "gloo") if r["kind"] in wanted]
    outcome = Outcome()
    words: dict[str, Any] = {"budget": seconds, "device": device, "where": where, "roof": roof, "outcome": outcome}
    try:
        measure(rows, path, progress=progress or lines(say), say=say, **words)
    finally:  # a run that is broken off has a record, too
        record.write(
            {
                **run_now,
                "ended": machine.now(),
                "after": machine.clocks(torch, device),
                **how,
                "kinds": sorted(wanted),
                "counts": outcome.counts,
                "reasons": outcome.reasons,
            }
        )
    counts = ", ".join(f"{number:,} {word}" for word, number in outcome.counts.items() if number)
    say(f"wrote {path} and {record.path.name}: {counts or 'nothing'}")
    return outcome.counts


# ------------------------------------------------------------------ run
# A measuring campaign: shapes in order of worth within a budget of time, resumed where an earlier one stopped.


__all__ = ["Outcome", "bench", "done", "measure", "shape_of"]

WARNED = 20  # sentences about rows that were refused or failed; the rest is counted
UNIT = "h200"  # the device whose peaks are the measure of how much work a row is
CALLS = timer.REPLAYS + 2  # that a long shape takes
ENDLESS, NOTHING = 1e30, 1e-12  # a peak that takes no time, and seconds that are none
SHARE = 0.02  # of the budget that one shape may take before all others had their turn


class Outcome(msgspec.Struct):
    """What came of a run."""

    measured: int = 0
    kept: int = 0  # the file had them
    failed: int = 0  # no kernel here, or one that broke
    refused: int = 0  # faster than the device can be
    left: int = 0  # no time
    reasons: dict[str, int] = {}  # why rows failed
    broken: str = ""  # what the device said when it stopped answering

    @property
    def counts(self) -> dict[str, int]:
        """``{"measured": 12, "kept": 0, "failed": 1, "refused": 0, "left": 0}``"""
        return {word: getattr(self, word) for word in ("measured", "kept", "failed", "refused", "left")}


def bench(device: str = "cuda", about: dict[str, Any] | None = None) -> Bench:
    """The machine at hand: torch, and vLLM's kernels where they can be imported."""
    torch = importlib.import_module("torch")
    library = Library("vllm" if device == "cuda" and importlib.util.find_spec("vllm") else "")
    if library.name:
        _configured(library)
    return Bench(torch, device, library, rotation(about or describe(torch, device)))


def _configured(library: Library) -> None:
    """Some kernels of vLLM ask for its configuration; without one they are missing alone."""
    try:
        context, config = library("config:set_current_vllm_config"), library("config:VllmConfig")
        context(config()).__enter__()
    except Exception:  # kernels that need it will say so
        return


class Pace:
    """How long a shape will take, by the best that others of its kind did for their FLOPs and their bytes."""

    def __init__(self) -> None:
        device = catalog.hardware(UNIT)
        self.units = {
            "flops": msgspec.structs.replace(device, memory_bandwidth=ENDLESS),
            "bytes": msgspec.structs.replace(device, flops=dict.fromkeys(device.flops, ENDLESS)),
        }
        self.rates: dict[tuple[str, ...], float] = {}  # of one kind, and of all

    def expected(self, row: Mapping[str, Any]) -> float:
        """Seconds to measure a row: at its kind's rates, else at the best of all kinds; 0 while nothing is known."""
        found = 0.0
        for word, work in self._works(row):
            rate = self.rates.get((word, row["kind"], row["dtype"]), self.rates.get((word,), 0.0))
            found = max(found, CALLS * rate * work)
        return found

    def learn(self, row: Mapping[str, Any], took: float) -> None:
        """A row took so long: larger ones are held to the best rates so far."""
        for word, work in self._works(row):
            for key in ((word,), (word, row["kind"], row["dtype"])):
                self.rates[key] = min(self.rates.get(key, math.inf), took / work)

    def _works(self, row: Mapping[str, Any]) -> list[tuple[str, float]]:
        """What a row computes and what it moves, in seconds of the unit; not what it does not do."""
        works = [(word, limits.work(row, unit)) for word, unit in self.units.items()]
        return [(word, work) for word, work in works if work > NOTHING]


def measure(
    rows: Iterable[dict[str, Any]],
    path: Path,
    *,
    budget: float,
    device: str = "cuda",
    progress: Progress | None = None,
    say: Callable[[str], None] = print,
    where: Bench | None = None,
    roof: limits.Limits | None = None,
    outcome: Outcome | None = None,
) -> Outcome:
    """Measure what is not in the file yet, until the budget is spent; each row is written as it is found.

    ``outcome`` is filled on the way, for who wants to know it even if the run is broken off.
    """
    began, todo, outcome = time.monotonic(), list(rows), Outcome() if outcome is None else outcome
    deadline, pace, warned, later = began + budget, Pace(), Counter[str](), list[dict[str, Any]]()
    where, roof = where or bench(device), roof or limits.Limits()
    where.deadline = deadline

    def warn(word: str, sentence: str) -> None:
        warned[word] += 1
        if warned[word] <= WARNED:
            say(sentence)

    with Sheet(path) as sheet:
        try:
            for number, row in enumerate(chain(todo, later)):
                now = time.monotonic()
                if progress:
                    progress(sum(outcome.counts.values()), len(todo), f"{now - began:.0f} of {budget:.0f} s")
                if sheet.has(row):
                    outcome.kept += 1
                    continue
                expected = pace.expected(row) if now < deadline else 0.0
                if now + expected >= deadline:
                    outcome.left += 1
                    continue
                if expected > SHARE * budget and number < len(todo):
                    later.append(row)
                    continue
                name = f"{row['kind']} {row['dtype']} {shape_of(row)}"
                try:
                    ready, took = _timed(where, row)
                except timer.OutOfTime:
                    outcome.left += 1
                    continue
                except Exception as error:  # a shape that a library refuses is a row that is missing, not the end
                    why = reason(error)
                    outcome.failed += 1
                    told = f"{row['kind']} {row['dtype']}: {why}"
                    outcome.reasons[told] = outcome.reasons.get(told, 0) + 1
                    if outcome.reasons[told] == 1:
                        warn("failed", f"{name}: {why}")
                    outcome.broken = _broken(where)
                    if outcome.broken:
                        say(f"the device stopped answering at {name}: {outcome.broken}; run again to go on")
                        outcome.left += len(todo) - sum(outcome.counts.values())
                        break
                    continue
                pace.learn(row, took)
                if roof.refuses(row, took, ready.cold):
                    outcome.refused += 1
                    least = roof.least(row, ready.cold)
                    warn("refused", f"{name}: {took:.3g} s is beyond the roof of {least:.3g} s and is not kept")
                    continue
                sheet.add(row, took, ready.source)
                outcome.measured += 1
        finally:
            where.close()
    if progress:
        progress(len(todo), len(todo), f"{time.monotonic() - began:.0f} of {budget:.0f} s")
    return outcome


def _timed(where: Bench, row: Mapping[str, Any]) -> tuple[Ready, float]:
    ready = CASES[row["kind"]](where, **{k: v for k, v in row.items() if k != "kind"})
    if ready.own is not None:
        return ready, ready.own()
    return ready, timer.seconds(where.torch, ready.calls, where.device, where.deadline)


def _broken(where: Bench) -> str:
    """Let go of what the failed shape held; what the device says if it is beyond use, since then all others fail."""
    where.shelf.clear()
    try:
        where.wait()
        if where.gpu:
            where.torch.cuda.empty_cache()
    except Exception as error:
        return reason(error)
    return ""
