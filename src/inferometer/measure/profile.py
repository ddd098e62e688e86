"""A kernel profile as a whole: rows are put into what a file has, and it is replaced by a whole file or not at all."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BadFile, short
from ..files import replaced
from .devices import recognise
from .kinds import HEAD, unflagged
from .machine import SCHEMA, Record, now


class Row(NamedTuple):
    """One line of the file."""

    kind: str
    dtype: str
    shape: str
    seconds: float
    source: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes it the same row whatever its time and its flags are."""
        return self.kind, self.dtype, self.shape, unflagged(self.source)


class Profile:
    """The rows of a file that may not be there yet: ``Profile(Path("h200.kernels.csv"))``"""

    def __init__(self, path: Path) -> None:
        if path.is_dir() or not path.parent.is_dir():
            raise BadFile(f"{path} cannot be written: it is a folder, or its folder is not there")
        self.path = path
        self.rows = {row.key: row for row in _read(path)}
        self.said = _device(path)

    def add(self, rows: Iterable[Row]) -> tuple[int, int]:
        """Put rows in, in the place of their like; how many were replaced, and how many others stay."""
        before, replaced = len(self.rows), 0
        for row in rows:
            key = row.key
            replaced += key in self.rows
            self.rows[key] = row
        return replaced, before - replaced

    def write(self, machine: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Replace the file, and note beside it where the new rows are from."""
        mine = dict(machine)
        if self.said is not None and recognise(self.said) == recognise(str(machine["device"])):
            mine = {"device": self.said}  # what was measured there says more than the catalogue
        record = Record(self.path, {"schema": SCHEMA, **mine})
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(HEAD)
        writer.writerows((*row[:3], f"{row.seconds:.4e}", row.source) for row in self.rows.values())
        replaced(self.path, text.getvalue())
        record.write({"when": now(), **run})


def _read(path: Path) -> list[Row]:
    """The whole lines of a profile; half a line that a run left when it was cut off is dropped, as measuring does."""
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    if not lines or tuple(lines[0]) != HEAD:
        begins = ",".join(lines[0]) if lines else text[:60]
        raise BadFile(f"{path} is there and is not a kernel profile: it begins with {short(begins)}; give another -o")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        try:
            kind, dtype, shape, seconds, source = line
            rows.append(Row(kind, dtype, shape, float(seconds), source))
        except ValueError:
            raise BadFile(f"{path}, line {number}: {short(','.join(line))} is not a row of {','.join(HEAD)}") from None
    return rows


def _device(path: Path) -> str | None:
    """The device that the record beside a profile names, if there is one; Record complains about a broken one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        said = json.loads(path.with_suffix(".json").read_text(encoding="utf-8")).get("device")
        return said if isinstance(said, str) else None
    return None
