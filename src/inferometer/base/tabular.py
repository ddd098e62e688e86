"""Tables in files of the user, in chunks of rows: whatever is wrong is a sentence with its line.

with open_table(path) as table:
    table.names                                       # ['arrival_s', 'input_tokens', …]
    for chunk in table.chunks(["input_tokens"]):
        chunk.numbers("input_tokens", whole=True)     # an array of up to 1,024 numbers

A table is CSV (commas, semicolons or tabs, by its header; blank lines and lines that begin with # are skipped), JSON
lines, a JSON document, or Parquet; any of them may be gzipped. Keys inside objects have dots: ``usage.prompt_tokens``.
A file is opened once and read from front to back, so that pipes work.
"""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from .errors import BadFile, abbreviate

CHUNK_ROWS = 1024  # rows that are held as text at once: few enough for the processor's caches
MAX_LINE = 2**26  # characters of a line of a table; /dev/zero is one line
MAX_DOCUMENT = 2**30  # characters of a JSON document, which is read as a whole
MAX_DEPTH = 4  # objects inside objects, whose keys are columns
ARCHIVES = {b"\x28\xb5\x2f\xfd": "zstdcat", b"BZh": "bzcat", b"\xfd7zXZ": "xzcat", b"PK\x03\x04": "unzip -p"}
"""First bytes of compressed files that are not opened here, and what unpacks them."""
NO_LABELS: Mapping[str, str] = MappingProxyType({})


class TableChunk(NamedTuple):
    """Some rows of a table: cells by column, and the line that each row stands on."""

    path: Path
    columns: dict[str, Sequence[Any]]
    lines: Sequence[int]
    labels: Mapping[str, str] = NO_LABELS  # of columns that the file names otherwise

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
            at = next(i for i, cell in enumerate(cells) if not is_numeric(cell))
            raise self.wrong(name, at, _allowed(whole, least, most)) from None
        wrong = ~((values >= least) & (values <= most))  # written so that nan is wrong, too
        if blank is not None and blank != blank:
            wrong &= ~np.isnan(values)
        if whole:
            wrong |= np.nan_to_num(values) % 1 != 0
        if wrong.any():
            raise self.wrong(name, int(np.argmax(wrong)), _allowed(whole, least, most))
        return values.astype(np.int64) if whole else values

    def where(self, keep: Sequence[bool]) -> TableChunk:
        """Only some of the rows: ``chunk.where([True, False, …])``"""
        at = [i for i, kept in enumerate(keep) if kept]
        columns: dict[str, Sequence[Any]] = {name: [cells[i] for i in at] for name, cells in self.columns.items()}
        return self._replace(columns=columns, lines=[self.lines[i] for i in at])

    def wrong(self, name: str, at: int, allowed: str) -> BadFile:
        """The error about one cell: ``trace.csv, line 7: output_tokens must be …, not 'many'``"""
        cell = self.columns[name][at]
        given = "but is empty" if cell is None or cell == "" else f"not {abbreviate(cell, 60)}"
        label = self.labels.get(name, name)
        return BadFile(f"{self.path}, line {self.lines[at]}: {label} must be {allowed}, {given}")


class Table:
    """A table that is open: its columns, and its rows, which can be read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []
        self._line_number = 0  # of the line that was read last
        self._closing: list[Any] = []
        self._objects: Iterator[tuple[int, dict[str, Any]]] | None = None  # None: not JSON
        self._cells: dict[str, list[Any]] | None = None  # of Parquet
        self.first_object: dict[str, Any] | None = None
        """The first object of a JSON file; None for other tables."""
        self._limit = MAX_LINE
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Table:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        while self._closing:
            self._closing.pop().close()

    def objects(self) -> Iterator[dict[str, Any]]:
        """The objects of a JSON file, one after another."""
        return (row for _, row in self._objects or ())

    def chunks(self, wanted: Iterable[str], *, ragged: bool = False) -> Iterator[TableChunk]:
        """The rows in chunks, with those of the ``wanted`` columns that the table has.

        Objects of a ``ragged`` table need not have the same keys: a chunk has all wanted columns, None where there is
        nothing.
        """
        keep = list(wanted)
        if self._cells is not None:
            count = max(map(len, self._cells.values()), default=0)
            columns: dict[str, Sequence[Any]] = {name: self._cells[name] for name in keep if name in self._cells}
            return iter([TableChunk(self.path, columns, range(1, count + 1))] if count else [])
        if self._objects is not None:
            return _object_chunks(self.path, self._objects, keep, ragged)
        return self._csv_chunks(keep)

    # -------------------------------------------------------------- opening

    def _open(self) -> None:
        try:
            raw: Any = self.path.open("rb")
        except OSError as error:
            why = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
            raise BadFile(f"{self.path} cannot be read: {why}") from None
        self._closing.append(raw)
        try:
            head = raw.peek(4)
            if head[:2] == b"\x1f\x8b":
                import gzip

                raw = gzip.GzipFile(fileobj=raw)
                self._closing.append(raw)
                head = raw.peek(4)
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error) from None
        for magic, tool in ARCHIVES.items():
            if head.startswith(magic):
                raise BadFile(f"{self.path} is compressed: give it unpacked, or as a pipe, <({tool} {self.path.name})")
        if head[:4] == b"PAR1":
            self._cells = _parquet_columns(self.path, raw)
            self.names = list(self._cells)
            return
        if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
            self._limit = MAX_DOCUMENT
        self._text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
        self._closing.append(self._text)
        self._begin(self._read_lines())

    def _begin(self, lines: Iterator[str]) -> None:
        """Look at the first line that says something: the names of the columns, or the beginning of JSON."""
        first, comment = None, ""
        for line in lines:
            if line.startswith("#"):
                comment = line
            elif line.strip():
                first = line
                break
        if first is None:
            raise BadFile(f"{self.path} {'has only blank lines and comments' if self._line_number else 'is empty'}")
        self._rest = lines
        if first.lstrip()[0] in "{[":
            objects = self._read_objects(first)
            number, self.first_object = next(objects, (0, {}))
            self._objects = chain([(number, self.first_object)], objects) if number else iter(())
            self.names = list(_keys(self.first_object))
            return
        self._begin_csv(comment, first, lines)

    def _read_lines(self) -> Iterator[str]:
        while True:
            try:
                line = self._text.readline(self._limit + 1)
            except UnicodeDecodeError:
                where = f", line {self._line_number + 1} or after:" if self._line_number else " is"
                raise BadFile(f"{self.path}{where} not UTF-8 text") from None
            except (OSError, EOFError, zlib.error) as error:
                raise self._unreadable(error) from None
            if not line:
                return
            self._line_number += 1
            if len(line) > self._limit:
                raise BadFile(
                    f"{self.path}, line {self._line_number}: more than {self._limit:,} characters, which no line of a "
                    "table has"
                )
            yield line

    def _unreadable(self, error: Exception) -> BadFile:
        return BadFile(f"{self.path} cannot be read: {getattr(error, 'strerror', None) or error}")

    # -------------------------------------------------------------- CSV

    def _begin_csv(self, comment: str, first: str, lines: Iterator[str]) -> None:
        """The names of the columns are the first line, or a comment above lines of numbers (``numpy.savetxt``)."""
        delimiter = max(",;\t", key=lambda sign: (first.count(sign), sign == ","))
        above = comment.lstrip("# ")
        with self._csv_errors():
            names, cells = (next(csv.reader([line], delimiter=delimiter)) for line in (above, first))
            commented = len(names) == len(cells) > 1 and all(map(is_numeric, cells)) and not any(map(is_numeric, names))
            begin = [above, first] if commented else [first]
            self._reader = csv.reader(chain(begin, lines), delimiter=delimiter)
            self._skipped = self._line_number - len(begin)  # lines of the file before the reader's first
            self.names = _names(self.path, next(self._reader))

    @contextmanager
    def _csv_errors(self) -> Iterator[None]:
        """What the csv module has against a file, as a sentence with the line."""
        try:
            yield
        except csv.Error as error:
            why = f"not CSV ({error})"
            if "field limit" in str(error):
                why = f"a cell of more than {csv.field_size_limit():,} characters"
            raise BadFile(f"{self.path}, line {self._line_number}: {why}") from None

    def _csv_chunks(self, keep: list[str]) -> Iterator[TableChunk]:
        reader, names = self._reader, self.names
        places = {name: names.index(name) for name in keep if name in names}
        with self._csv_errors():
            while True:
                before = self._skipped + reader.line_num
                rows = list(islice(reader, CHUNK_ROWS))
                if not rows:
                    return
                # a quoted cell may hold line breaks: then a row's line is known to a few lines only
                lines: Sequence[int] = range(before + 1, before + 1 + len(rows))
                if set(map(len, rows)) != {len(names)} or any(row[0].startswith("#") for row in rows):
                    lines, rows = _full(self.path, lines, rows, len(names))
                if rows:
                    turned = list(zip(*rows, strict=True))
                    yield TableChunk(self.path, {name: turned[place] for name, place in places.items()}, lines)

    # -------------------------------------------------------------- JSON

    def _read_objects(self, first: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """JSON lines, or all of the file as one object or a list of objects."""
        number = self._line_number
        try:
            row = _decode(first)
        except (ValueError, RecursionError):
            row = None  # the beginning of something longer
        if isinstance(row, dict):
            yield number, row
            for line in self._rest:
                if line.strip() and not line.startswith("#"):
                    yield self._line_number, self._object(line)
            return
        document = row if row is not None else self._document(first)
        for at, item in enumerate(document if isinstance(document, list) else [document], 1):
            if not isinstance(item, dict):
                raise BadFile(f"{self.path}, item {at}: {abbreviate(item, 60)} is not a JSON object")
            yield at, item

    def _document(self, first: str) -> Any:
        pieces, size = [first], len(first)
        for line in self._rest:
            pieces.append(line)
            size += len(line)
            if size > MAX_DOCUMENT:
                raise BadFile(f"{self.path}: a JSON document of more than {MAX_DOCUMENT:,} characters")
        try:
            return _decode("".join(pieces))
        except (ValueError, RecursionError) as error:
            raise BadFile(f"{self.path}: not JSON ({error})") from None

    def _object(self, line: str) -> dict[str, Any]:
        try:
            row = _decode(line)
        except (ValueError, RecursionError) as error:
            raise BadFile(f"{self.path}, line {self._line_number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise BadFile(f"{self.path}, line {self._line_number}: {abbreviate(line.strip(), 60)} is not a JSON object")
        return row


def open_table(path: Path) -> Table:
    """A table of the user: ``with open_table(path) as table: print(table.names)``"""
    return Table(path)


def column_names(path: Path) -> list[str]:
    """The names of a table's columns; of JSON lines, the keys of the first."""
    with open_table(path) as table:
        return table.names


def read_table(path: Path, wanted: Iterable[str]) -> Iterator[TableChunk]:
    """The rows of a table in chunks, with those of the ``wanted`` columns that it has."""
    with open_table(path) as table:
        yield from table.chunks(wanted)


def is_numeric(cell: object) -> bool:
    """Whether a cell says a number: ``is_numeric("1e3")  # True``"""
    try:
        float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
    return True


# ------------------------------------------------------------------ pieces


def _full(path: Path, lines: Sequence[int], rows: list[list[str]], width: int) -> tuple[list[int], list[list[str]]]:
    """The rows without empty lines and comments; one that is shorter or longer than the header is an error."""
    kept = [(line, row) for line, row in zip(lines, rows, strict=True) if any(row) and not row[0].startswith("#")]
    for line, row in kept:
        if len(row) != width:
            raise BadFile(f"{path}, line {line}: {_count_cells(len(row))} where the header has {width}")
    return [line for line, _ in kept], [row for _, row in kept]


def _object_chunks(
    path: Path, objects: Iterator[tuple[int, dict[str, Any]]], keep: list[str], ragged: bool
) -> Iterator[TableChunk]:
    names: list[str] | None = keep if ragged else None  # the first object's
    while rows := list(islice(objects, CHUNK_ROWS)):
        if names is None:
            names = [name for name in keep if _has(rows[0][1], name)]
        late_names = [name for name in keep if name not in names]
        for number, row in rows if late_names else ():
            late = [name for name in late_names if _has(row, name)]
            if late:
                raise BadFile(f"{path}, line {number}: has {late[0]!r}, which the lines before it lack")
        yield TableChunk(path, {name: [_cell(row, name) for _, row in rows] for name in names}, [n for n, _ in rows])


def _decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        if "nan" not in text.lower() and "infinity" not in text.lower():
            raise ValueError(str(error)) from None
        return json.loads(text)  # takes NaN and Infinity, which Python's own writer writes


def _keys(row: Mapping[str, Any], depth: int = 1) -> Iterator[str]:
    """The keys of an object, those inside its objects after them: ``usage``, ``usage.prompt_tokens``"""
    yield from row
    if depth < MAX_DEPTH:
        for name, value in row.items():
            if isinstance(value, dict):
                yield from (f"{name}.{key}" for key in _keys(value, depth + 1))


def _has(row: Mapping[str, Any], name: str) -> bool:
    return name in row or ("." in name and _cell(row, name) is not None)


def _cell(row: Mapping[str, Any], name: str) -> Any:
    if name in row or "." not in name:
        return row.get(name)
    value: Any = row
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _parquet_columns(path: Path, raw: Any) -> dict[str, list[Any]]:
    """Parquet has its index at its end: all of the file is read first, which a pipe can give, too."""
    import importlib

    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise BadFile(f"{path} is Parquet, which needs pyarrow: pip install pyarrow (CSV tables do not)") from None
    try:
        columns: dict[str, list[Any]] = parquet.read_table(io.BytesIO(raw.read())).to_pydict()
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
        raise BadFile(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    return columns


def _names(path: Path, row: list[str]) -> list[str]:
    names = [name.strip() for name in row]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise BadFile(f"{path} has two columns named {twice[0]!r}")
    return names


def _allowed(whole: bool, least: float, most: float) -> str:
    return f"a {'whole ' if whole else ''}number from {least:,.10g} to {most:,.10g}"


def _count_cells(number: int) -> str:
    return f"{number} cell{'' if number == 1 else 's'}"
