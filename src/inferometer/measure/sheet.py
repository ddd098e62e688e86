"""A kernel profile on disk: one CSV row a shape, added as it is found, so that nothing is lost when a run stops.

A run that is cut off may leave half a line at the end; that line is dropped and its shape measured again.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import BadFile, short
from .kinds import HEAD

Key = tuple[str, str, str]  # kind, dtype, shape


def shape_of(row: Mapping[str, Any]) -> str:
    """The shape as one cell: ``shape_of({"kind": "norm", "dtype": "bf16", "m": 8, "n": 64})  # 'm=8 n=64'``"""
    return " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()
                    if k not in ("kind", "dtype"))  # fmt: skip


def done(path: Path) -> dict[Key, float]:
    """Seconds of the rows that a file already has; half a line at its end does not count."""
    return _rows(path, _lines(path)[0])


def _lines(path: Path) -> tuple[str, bytes]:
    """The whole lines of a file, and what a run that was cut off left after them."""
    if not path.exists():
        return "", b""
    try:
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        return data[:end].decode("utf-8"), data[end:]
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not a kernel profile: its byte {error.start} is not text") from None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None


def _rows(path: Path, text: str) -> dict[Key, float]:
    lines = list(csv.reader(io.StringIO(text)))
    if lines and tuple(lines[0]) != HEAD:
        raise BadFile(
            f"{path} is not a kernel profile: it begins with {short(','.join(lines[0]))}, not {','.join(HEAD)}"
        )
    found: dict[Key, float] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        try:
            kind, dtype, shape, seconds, _ = line
            found[kind, dtype, shape] = float(seconds)
        except ValueError:
            wants = f"{len(HEAD)} cells with seconds in the fourth"
            raise BadFile(f"{path}, line {number}: {short(','.join(line))} is not a row of {wants}") from None
    return found


class Sheet:
    """A profile that rows are added to: ``with Sheet(Path("kernels.csv")) as sheet: sheet.add(row, 1e-5, "torch")``"""

    def __init__(self, path: Path) -> None:
        self.path = path
        keep, rest = _lines(path)
        if not keep and not ",".join(HEAD).encode().startswith(rest.rstrip()):
            raise BadFile(f"{path} is not a kernel profile: it begins with {short(rest[:60])}")
        self.known = _rows(path, keep)
        try:
            self.file = path.open("r+b" if path.exists() else "xb")
        except OSError as error:
            raise BadFile(f"{path} cannot be written: {error.strerror}") from None
        self.file.truncate(len(keep.encode()))
        self.file.seek(0, io.SEEK_END)
        if not keep:
            self._line(HEAD)

    def __enter__(self) -> Sheet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()

    def has(self, row: Mapping[str, Any]) -> bool:
        """Whether this shape was measured before."""
        return (row["kind"], row["dtype"], shape_of(row)) in self.known

    def add(self, row: Mapping[str, Any], seconds: float, source: str) -> None:
        """Write a row so that it is there whatever happens next."""
        shape = shape_of(row)
        self._line((row["kind"], row["dtype"], shape, f"{seconds:.4e}", source))
        self.known[row["kind"], row["dtype"], shape] = seconds

    def _line(self, cells: tuple[str, ...]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        self.file.write(text.getvalue().encode())
        self.file.flush()
