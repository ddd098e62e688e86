"""The file of measured layers, in LLM-Profile's columns: read, added to length by length, never lost.

Beside it lies a JSON file of the same name, which says how the rows were taken.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..base.errors import BadFile, abbreviate
from ..base.files import write_atomic

COLUMNS = ("hardware", "model", "layer_name", "input", "kv_cache", "latency(ns)")


class Length(NamedTuple):
    """New and cached tokens of one sequence: ``Length(128, 0)`` is a prompt, ``Length(1, 128)`` a decode step."""

    input: int
    kv_cache: int


Seconds = dict[str, float]  # part -> seconds in one layer


class LayerRows:
    """The rows of one model on one machine: ``LayerRows(Path("H200/llama-3.1-8b.csv"), "H200", "llama-3.1-8b")``"""

    def __init__(self, path: Path, hardware: str, model: str) -> None:
        self.path, self.hardware, self.model = path, hardware, model
        self.rows: dict[Length, Seconds] = {}
        if path.exists():
            self._read()

    def _read(self) -> None:
        try:
            text = self.path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise BadFile(f"{self.path} cannot be read: {why}") from None
        torn = not text.endswith("\n")  # an earlier run was cut off within a line
        lines = csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))
        if tuple(next(lines, COLUMNS)) != COLUMNS:
            raise BadFile(f"{self.path} does not have the columns {','.join(COLUMNS)}; give another -o or `hardware`")
        others, own = [], []
        for number, row in enumerate(lines, 2):
            try:
                hardware, model, name, new, cached, nanoseconds = row
                length, seconds = Length(int(new), int(cached)), float(nanoseconds) * 1e-9
                if not (0 < seconds < 1e9 and length.input > 0 and length.kv_cache >= 0):
                    raise ValueError
            except ValueError:
                raise BadFile(
                    f"{self.path}, line {number}: {abbreviate(','.join(row))} is not a row of {','.join(COLUMNS)}"
                ) from None
            if (hardware, model) == (self.hardware, self.model):
                self.rows.setdefault(length, {})[name] = seconds
                own.append((length, row))
            else:
                others.append(row)
        if torn:
            lost = own[-1][0] if own else None  # a length that lacks a row is measured again
            self.rows.pop(lost, None)  # type: ignore[arg-type]
            write_atomic(self.path, _text([list(COLUMNS), *others, *(row for length, row in own if length != lost)]))

    def add(self, length: Length, seconds_of: Mapping[str, float]) -> None:
        """Write a length's rows at once, at the end of the file."""
        fresh = not self.path.exists() or not self.path.stat().st_size
        rows = [
            [self.hardware, self.model, name, *map(str, length), str(max(1, round(seconds * 1e9)))]
            for name, seconds in seconds_of.items()
        ]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(_text([list(COLUMNS), *rows] if fresh else rows))
        except OSError as error:
            raise BadFile(f"{self.path} cannot be written: {error.strerror}") from None
        self.rows[length] = dict(seconds_of)

    def phase(self, phase: str) -> dict[int, Seconds]:
        """The rows of prefill by input length, or of decode by cached length; one token after none is both."""
        if phase == "prefill":
            return {length.input: rows for length, rows in sorted(self.rows.items()) if not length.kv_cache}
        return {length.kv_cache: rows for length, rows in sorted(self.rows.items()) if length.input == 1}

    def scaled(self, path: Path, factors: Mapping[str, float]) -> None:
        """Write all rows again, each multiplied by its phase's factor; a single token counts as decode."""
        rows = [
            [
                self.hardware,
                self.model,
                name,
                *map(str, length),
                str(max(1, round(seconds * factors["decode" if length.input == 1 else "prefill"] * 1e9))),
            ]
            for length, parts in self.rows.items()
            for name, seconds in parts.items()
        ]
        write_atomic(path, _text([list(COLUMNS), *rows]))

    def describe(self, how: Mapping[str, Any], same: tuple[str, ...]) -> None:
        """Note how rows are taken; refuse to mix rows that were taken differently in what ``same`` names."""
        path = self.path.with_suffix(".json")
        if self.rows and path.exists():
            try:
                before = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            except (OSError, msgspec.MsgspecError) as error:
                raise BadFile(f"{path} cannot be read: {error}") from None
            for key in same:
                if before.get(key) != how.get(key):
                    raise BadFile(
                        f"the rows of {self.path} were measured with {key} {abbreviate(before.get(key))}, not "
                        f"{abbreviate(how.get(key))}; give another -o or `hardware`"
                    )
        write_atomic(path, msgspec.json.format(msgspec.json.encode(how), indent=1).decode() + "\n")


def _text(rows: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


# ------------------------------------------------------------------ lengths that are timed


MODES = ("prefill", "decode", "both")


def lengths(most: int, step: int | None = None) -> list[int]:
    """1, 2, 4 … up to the step, then every step: ``lengths(512, 128)  # [1, 2, 4, …, 64, 128, 256, 384, 512]``

    Small lengths differ by their number of kernels and waves, long ones are nearly linear. The step is a sixteenth of
    the longest unless given, as a power of two.
    """
    step = step or 1 << max(0, (most // 16).bit_length() - 1)
    doubling = [1 << power for power in range(step.bit_length()) if 1 << power < min(step, most)]
    return sorted({*doubling, *range(step, most + 1, step), most})


def coarse_first(values: list[int]) -> list[int]:
    """The ends, then the middles of what is between: ``coarse_first([1, 2, 3, 4, 5])  # [1, 5, 3, 2, 4]``"""
    order = [values[0], values[-1]]
    gaps = [(0, len(values) - 1)]
    for first, last in gaps:
        middle = (first + last) // 2
        if first < middle < last:
            order.append(values[middle])
            gaps += [(first, middle), (middle, last)]
    return list(dict.fromkeys(order))


def planned_lengths(
    mode: str, prefill_max: int, decode_max: int, step: int | None, positions: int | None
) -> list[Length]:
    """All lengths in the order of their worth, the phases in turn; none is beyond the model's positions.

    ``planned("decode", 2048, 2048, None, 1024)  # [Length(1, 0), Length(1, 1023), …]``
    """
    most = positions or 10**9
    new = coarse_first(lengths(min(prefill_max, most), step))
    old = coarse_first(sorted({0, *lengths(min(decode_max, most - 1), step)}))
    phases = {"prefill": [Length(n, 0) for n in new], "decode": [Length(1, n) for n in old]}
    chosen = [phases[phase] for phase in phases if mode in (phase, "both")]
    return list(dict.fromkeys(length for turn in zip_longest(*chosen) for length in turn if length))
