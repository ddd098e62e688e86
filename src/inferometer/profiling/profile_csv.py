"""A kernel profile on disk: one CSV row a shape, in the schema of `costs.kernels.kernel_rows`.

`ProfileWriter` adds rows as they are measured, so that nothing is lost when a run stops; a run that is cut off may
leave half a line at the end, which is dropped and its shape measured again. `ProfileFile` puts many rows into what a
file has, and replaces it by a whole file or not at all.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ..base.errors import BadFile, abbreviate
from ..base.files import write_atomic
from ..costs.kernels.kernel_rows import HEADER, KernelRow
from .machine import SCHEMA, MachineRecord, now, recognise

RowKey = tuple[str, str, str]  # kind, dtype, shape


def shape_cell(row: Mapping[str, Any]) -> str:
    """The shape as one cell: ``shape_cell({"kind": "norm", "dtype": "bf16", "m": 8, "n": 64})  # 'm=8 n=64'``"""
    return " ".join(
        f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items() if k not in ("kind", "dtype")
    )


def read_seconds(path: Path) -> dict[RowKey, float]:
    """Seconds of the rows that a file already has; half a line at its end does not count."""
    return _rows(path, _lines(path)[0])


def _lines(path: Path) -> tuple[str, bytes]:
    """The whole lines of a file, and what a run that was cut off left after them."""
    if not path.exists():
        return "", b""
    _plain(path)
    try:
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        return data[:end].decode("utf-8"), data[end:]
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not a kernel profile: its byte {error.start} is not text") from None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None


def _plain(path: Path) -> None:
    if not path.is_file():
        raise BadFile(f"{path} is not a plain file: rows are added to it, so it cannot be a pipe or a device")


def _rows(path: Path, text: str) -> dict[RowKey, float]:
    lines = list(csv.reader(io.StringIO(text)))
    if lines and tuple(lines[0]) != HEADER:
        raise BadFile(
            f"{path} is not a kernel profile: it begins with {abbreviate(','.join(lines[0]))}, not {','.join(HEADER)}"
        )
    seconds_of: dict[RowKey, float] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        try:
            kind, dtype, shape, seconds, _ = line
            seconds_of[kind, dtype, shape] = float(seconds)
        except ValueError:
            wants = f"{len(HEADER)} cells with seconds in the fourth"
            raise BadFile(f"{path}, line {number}: {abbreviate(','.join(line))} is not a row of {wants}") from None
    return seconds_of


class ProfileWriter:
    """A profile that rows are added to: ``with ProfileWriter(path) as writer: writer.add(row, 1e-5, "torch")``"""

    def __init__(self, path: Path) -> None:
        self.path = path
        keep, rest = _lines(path)
        if not keep and not ",".join(HEADER).encode().startswith(rest.rstrip()):
            raise BadFile(f"{path} is not a kernel profile: it begins with {abbreviate(rest[:60])}")
        self.known = _rows(path, keep)
        try:
            self.file = path.open("r+b" if path.exists() else "xb")
        except OSError as error:
            raise BadFile(f"{path} cannot be written: {error.strerror}") from None
        self.file.truncate(len(keep.encode()))
        self.file.seek(0, io.SEEK_END)
        if not keep:
            self._line(HEADER)

    def __enter__(self) -> ProfileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()

    def has(self, row: Mapping[str, Any]) -> bool:
        """Whether this shape was measured before."""
        return (row["kind"], row["dtype"], shape_cell(row)) in self.known

    def add(self, row: Mapping[str, Any], seconds: float, source: str) -> None:
        """Write a row so that it is there whatever happens next."""
        shape = shape_cell(row)
        self._line((row["kind"], row["dtype"], shape, f"{seconds:.4e}", source))
        self.known[row["kind"], row["dtype"], shape] = seconds

    def _line(self, cells: tuple[str, ...]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        self.file.write(text.getvalue().encode())
        self.file.flush()


class ProfileFile:
    """The rows of a file that may not be there yet: ``ProfileFile(Path("h200.kernels.csv"))``"""

    def __init__(self, path: Path) -> None:
        if path.is_dir() or not path.parent.is_dir():
            raise BadFile(f"{path} cannot be written: it is a folder, or its folder is not there")
        self.path = path
        self.rows = {row.key: row for row in _read(path)}
        self.recorded_device = _recorded_device(path)

    def add(self, rows: Iterable[KernelRow]) -> tuple[int, int]:
        """Put rows in, in the place of their like; how many were replaced, and how many others stay."""
        before, replaced = len(self.rows), 0
        for row in rows:
            key = row.key
            replaced += key in self.rows
            self.rows[key] = row
        return replaced, before - replaced

    def write(self, machine: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Replace the file, and note beside it where the new rows are from."""
        described = dict(machine)
        if self.recorded_device is not None and recognise(self.recorded_device) == recognise(str(machine["device"])):
            described = {"device": self.recorded_device}  # what was measured there says more than the catalogue
        record = MachineRecord(self.path, {"schema": SCHEMA, **described})
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows((*row[:3], f"{row.seconds:.4e}", row.source) for row in self.rows.values())
        write_atomic(self.path, text.getvalue())
        record.write({"when": now(), **run})


def _read(path: Path) -> list[KernelRow]:
    """The whole lines of a profile; half a line that a run left when it was cut off is dropped, as measuring does."""
    if not path.exists():
        return []
    _plain(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    if not lines or tuple(lines[0]) != HEADER:
        begins = ",".join(lines[0]) if lines else text[:60]
        raise BadFile(
            f"{path} exists and is not a kernel profile: it begins with {abbreviate(begins)}; give another -o"
        )
    rows = []
    for number, line in enumerate(lines[1:], 2):
        try:
            kind, dtype, shape, seconds, source = line
            rows.append(KernelRow(kind, dtype, shape, float(seconds), source))
        except ValueError:
            raise BadFile(
                f"{path}, line {number}: {abbreviate(','.join(line))} is not a row of {','.join(HEADER)}"
            ) from None
    return rows


def _recorded_device(path: Path) -> str | None:
    """The device that the record beside a profile names, if any; MachineRecord complains about a broken one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        device = json.loads(path.with_suffix(".json").read_text(encoding="utf-8")).get("device")
        return device if isinstance(device, str) else None
    return None
