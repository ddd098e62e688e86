"""Tables in files of the user, CSV or JSON lines, in chunks of rows: whatever is wrong is a sentence with its line.

for chunk in read_table(path, ["input_tokens"]):
    chunk.numbers("input_tokens", whole=True)     # an array of up to 1,024 numbers
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import msgspec
import numpy as np

from .errors import BadFile, abbreviate

CHUNK_ROWS = 1024  # rows that are held as text at once: few enough for the processor's caches


class TableChunk(NamedTuple):
    """Some rows of a table: cells by column, and the line that each row stands on."""

    path: Path
    columns: dict[str, Sequence[Any]]
    lines: Sequence[int]

    def numbers(
        self, name: str, *, whole: bool = False, least: float = 0.0, most: float = 1e12, blank: float | None = None
    ) -> np.ndarray:
        """A column as numbers in a range; ``blank`` stands for empty cells, which are an error without it."""
        cells = self.columns[name]
        if blank is not None:
            cells = [blank if c is None or c == "" else c for c in cells]
        try:
            values = np.fromiter(map(float, cells), float, len(cells))
        except (TypeError, ValueError, OverflowError):
            at = next(i for i, cell in enumerate(cells) if not _is_number(cell))
            raise self.wrong(name, at, _allowed(whole, least, most)) from None
        wrong = ~((values >= least) & (values <= most))  # written so that nan is wrong, too
        if blank is not None and blank != blank:
            wrong &= ~np.isnan(values)
        if whole:
            wrong |= np.nan_to_num(values) % 1 != 0
        if wrong.any():
            raise self.wrong(name, int(np.argmax(wrong)), _allowed(whole, least, most))
        return values.astype(np.int64) if whole else values

    def wrong(self, name: str, at: int, allowed: str) -> BadFile:
        """The error about one cell: ``trace.csv, line 7: output_tokens must be …, not 'many'``"""
        cell = self.columns[name][at]
        given = "but is empty" if cell is None or cell == "" else f"not {abbreviate(cell, 60)}"
        return BadFile(f"{self.path}, line {self.lines[at]}: {name} must be {allowed}, {given}")


def column_names(path: Path) -> list[str]:
    """The names of a table's columns; of JSON lines, the keys of the first."""
    with _opened(path) as file:
        first = _first(path, file)
        if first.startswith("{"):
            return list(_decoded(path, 1, first))
        return _names(path, next(csv.reader([first])))


def read_table(path: Path, wanted: Iterable[str]) -> Iterator[TableChunk]:
    """The rows of a table in chunks, with those of the ``wanted`` columns that it has."""
    keep = list(wanted)
    with _opened(path) as file:
        first = _first(path, file)
        file.seek(0)
        yield from _json_rows(path, file, keep) if first.startswith("{") else _csv_rows(path, file, keep)


def _csv_rows(path: Path, file: TextIO, keep: list[str]) -> Iterator[TableChunk]:
    reader = csv.reader(file)
    try:
        names = _names(path, next(row for row in reader if any(row)))
        places = {name: names.index(name) for name in keep if name in names}
        while True:
            before = reader.line_num
            rows = list(islice(reader, CHUNK_ROWS))
            if not rows:
                return
            # a quoted cell may hold line breaks: then a row's line is known to a few lines only
            lines: Sequence[int] = range(before + 1, before + 1 + len(rows))
            if set(map(len, rows)) != {len(names)}:
                lines, rows = _full(path, lines, rows, len(names))
            if rows:
                turned = list(zip(*rows, strict=True))
                yield TableChunk(path, {name: turned[place] for name, place in places.items()}, lines)
    except csv.Error as error:
        raise BadFile(f"{path}, line {reader.line_num}: not CSV ({error})") from None
    except UnicodeDecodeError:
        raise BadFile(f"{path}, line {reader.line_num + 1} or after: not UTF-8 text") from None


def _full(path: Path, lines: Sequence[int], rows: list[list[str]], width: int) -> tuple[list[int], list[list[str]]]:
    """The rows without empty lines; one that is shorter or longer than the header is an error."""
    kept = [(line, row) for line, row in zip(lines, rows, strict=True) if any(row)]
    for line, row in kept:
        if len(row) != width:
            raise BadFile(f"{path}, line {line}: {_cells(len(row))} where the header has {width}")
    return [line for line, _ in kept], [row for _, row in kept]


def _json_rows(path: Path, file: TextIO, keep: list[str]) -> Iterator[TableChunk]:
    numbered = enumerate(file, start=1)
    names: list[str] | None = None  # the first line's
    while True:
        try:
            lines = [(number, line) for number, line in islice(numbered, CHUNK_ROWS)]
        except UnicodeDecodeError:
            raise BadFile(f"{path} is not UTF-8 text") from None
        if not lines:
            return
        rows = [(number, _decoded(path, number, line)) for number, line in lines if line.strip()]
        if rows and names is None:
            names = [name for name in keep if name in rows[0][1]]
        for number, row in rows:
            late = [name for name in keep if name in row and name not in (names or ())]
            if late:
                raise BadFile(f"{path}, line {number}: has {late[0]!r}, which the lines before it lack")
        if rows:
            yield TableChunk(
                path, {name: [row.get(name) for _, row in rows] for name in names or ()}, [n for n, _ in rows]
            )


def _decoded(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFile(f"{path}, line {number}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise BadFile(f"{path}, line {number}: {abbreviate(line.strip(), 60)} is not a JSON object")
    return row


def _opened(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise BadFile(f"{path} cannot be read: {why}") from None


def _first(path: Path, file: TextIO) -> str:
    """The first line with something on it."""
    try:
        first = next((line for line in file if line.strip()), "").strip()
    except UnicodeDecodeError:
        raise BadFile(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    if not first:
        raise BadFile(f"{path} is empty")
    if first.startswith("["):
        raise BadFile(f"{path} begins with a JSON list; JSON lines have one object on each line")
    return first


def _names(path: Path, row: list[str]) -> list[str]:
    names = [name.strip() for name in row]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise BadFile(f"{path} has two columns named {twice[0]!r}")
    return names


def _allowed(whole: bool, least: float, most: float) -> str:
    return f"a {'whole ' if whole else ''}number from {least:,.10g} to {most:,.10g}"


def _is_number(cell: object) -> bool:
    try:
        float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _cells(number: int) -> str:
    return f"{number} cell{'' if number == 1 else 's'}"
