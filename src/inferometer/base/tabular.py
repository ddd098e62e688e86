"""Tables in files of the user, in chunks of rows: whatever is wrong is a sentence with its line.

with open_table(path) as table:
    table.names                                       # ['arrival_s', 'input_tokens', …]
    for chunk in table.chunks(["input_tokens"]):
        chunk.numbers("input_tokens", whole=True)     # an array of up to 1,024 numbers

A table is CSV (commas, semicolons or tabs, by its header), JSON lines, a JSON document, or Parquet; any of them may be
compressed (`base.input_file`). Keys inside objects have dots: ``usage.prompt_tokens``. A file is opened once and read
from front to back, so that pipes work, and a few MB of it are held at once, however long it or its lines are.

In CSV, lines that begin with # are comments above the header; below it, only those that have no second cell are: an id
such as #17 is data. Blank lines are skipped.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from .errors import BadFile, abbreviate
from .extras import load_library
from .input_file import BYTE_ORDER_MARK, HEAD, InputFile, check_text, open_input, unreadable
from .json_list import list_items

CHUNK_ROWS = 1024  # rows that are held as text at once: few enough for the processor's caches
CHUNK_SIZE = 2**24  # characters that are held as text at once, if the lines are long
MAX_LINE = 2**24  # characters of a line of CSV, and of a cell; /dev/zero is one line
MAX_OBJECT = 2**28  # bytes of a JSON object, which is read as a whole
MAX_ROWS = 10**8  # of a table: something that never ends has more
MAX_PARQUET = 2**30  # bytes of Parquet that came through a pipe and must lie somewhere
MAX_DEPTH = 4  # objects inside objects, whose keys are columns
NO_LABELS: Mapping[str, str] = MappingProxyType({})
csv.field_size_limit(MAX_LINE)  # prompts of 100,000 tokens are in cells


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
        self._parquet: Any = None
        self.first_object: dict[str, Any] | None = None
        """The first object of a JSON file; None for other tables."""
        self._longest = 1  # characters of the longest line so far
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
        if self._parquet is not None:
            return _parquet_chunks(self.path, self._parquet, [name for name in keep if name in self.names])
        if self._objects is not None:
            return self._object_chunks(self._objects, keep, ragged)
        return self._csv_chunks(keep)

    def whole(self, most: int) -> TableChunk:
        """All rows with all columns as one chunk, of a table of up to ``most`` rows."""
        pieces: list[TableChunk] = []
        count = 0
        for piece in self.chunks(self.names):
            pieces.append(piece)
            count += len(piece.lines)
            if count > most:
                raise BadFile(f"{self.path} has more than {most:,} rows")
        columns: dict[str, Sequence[Any]] = {
            name: [cell for piece in pieces for cell in piece.columns[name]] for name in self.names
        }
        return TableChunk(self.path, columns, [line for piece in pieces for line in piece.lines])

    # -------------------------------------------------------------- opening

    def _open(self) -> None:
        source = open_input(self.path)
        self._file = source.file
        self._closing.append(source.file)
        if source.head.startswith(b"PAR1"):
            self._parquet = _open_parquet(self.path, source, self._closing)
            self.names = list(self._parquet.schema_arrow.names)
            return
        check_text(self.path, source.head)
        start = _beginning(source.head)
        if source.head[start : start + 1] in (b"{", b"["):
            self._begin_json(self._file.read(start), source.head[start : start + 1])
            return
        self._text = io.TextIOWrapper(self._file, encoding="utf-8-sig", newline="")
        self._closing.append(self._text)
        self._begin_csv(self._read_lines())

    def _read_lines(self) -> Iterator[str]:
        while True:
            try:
                line = self._text.readline(MAX_LINE + 1)
            except UnicodeDecodeError:
                where = f", line {self._line_number + 1} or after:" if self._line_number else " is"
                raise BadFile(f"{self.path}{where} not UTF-8 text") from None
            except OSError as error:
                raise unreadable(self.path, error) from None
            if not line:
                return
            self._line_number += 1
            if len(line) > self._longest:
                self._longest = len(line)
                if len(line) > MAX_LINE:
                    raise BadFile(
                        f"{self.path}, line {self._line_number}: more than {MAX_LINE:,} characters, which no line of a "
                        "table has"
                    )
            yield line

    def _taken(self, rows: Iterator[Any]) -> Iterator[tuple[int, list[Any]]]:
        """Rows in chunks, and how many came before each; the first are small, and those of long lines."""
        before, count = 0, 1
        while chunk := list(islice(rows, max(1, min(count, CHUNK_SIZE // self._longest)))):
            yield before, chunk
            before, count = before + len(chunk), min(32 * count, CHUNK_ROWS)
            if before > MAX_ROWS:
                raise BadFile(f"{self.path} has more than {MAX_ROWS:,} rows")

    # -------------------------------------------------------------- CSV

    def _begin_csv(self, lines: Iterator[str]) -> None:
        """The names of the columns are the first line, or a comment above lines of numbers (``numpy.savetxt``)."""
        first, comment = None, ""
        for line in lines:
            if line.startswith("#"):
                comment = line
            elif line.strip():
                first = line
                break
        if first is None:
            raise BadFile(f"{self.path} {'has only blank lines and comments' if self._line_number else 'is empty'}")
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
            after = self._skipped + reader.line_num
            for _, rows in self._taken(reader):
                before, after = after, self._skipped + reader.line_num
                # a quoted cell may hold line breaks: then a row's line is known to a few lines only
                lines: Sequence[int] = range(before + 1, before + 1 + len(rows))
                if set(map(len, rows)) != {len(names)}:
                    lines, rows = _full(self.path, lines, rows, len(names))
                if rows:
                    turned = list(zip(*rows, strict=True))
                    yield TableChunk(self.path, {name: turned[place] for name, place in places.items()}, lines)

    # -------------------------------------------------------------- JSON

    def _begin_json(self, above: bytes, sign: bytes) -> None:
        self._line_number = above.count(b"\n")
        objects = self._items() if sign == b"[" else self._read_objects()
        number, self.first_object = next(objects, (0, {}))
        self._objects = chain([(number, self.first_object)], objects) if number else iter(())
        self.names = list(_keys(self.first_object))

    def _read_objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """JSON lines, or all of the file as one object."""
        first = self._byte_line()
        try:
            row = _decode(first)
        except (ValueError, RecursionError):  # the beginning of something longer
            while piece := self._bytes(HEAD):
                self._extend(first, piece)
            row = self._object(first, "")
        yield self._line_number, row
        while line := self._byte_line():
            if line.strip() and not line.startswith(b"#"):
                yield self._line_number, self._object(line, f", line {self._line_number}")

    def _byte_line(self) -> bytearray:
        """A line, in pieces: one that never ends must not be held twice."""
        line = bytearray()
        while not line.endswith(b"\n"):
            piece = self._bytes(HEAD, "readline")
            if not piece:
                break
            self._extend(line, piece)
        self._line_number += bool(line)
        self._longest = max(self._longest, len(line))
        return line

    def _bytes(self, most: int, how: str = "read") -> bytes:
        try:
            data: bytes = getattr(self._file, how)(most)
        except OSError as error:
            raise unreadable(self.path, error) from None
        return data

    def _extend(self, data: bytearray, piece: bytes) -> None:
        data += piece
        if len(data) > MAX_OBJECT:
            raise BadFile(f"{self.path} has a JSON object of more than {MAX_OBJECT:,} bytes, or is not JSON")

    def _object(self, data: bytearray, where: str) -> dict[str, Any]:
        try:
            row = _decode(data)
        except (ValueError, RecursionError) as error:
            raise BadFile(f"{self.path}{where}: not JSON ({error})") from None
        if not isinstance(row, dict):
            given = abbreviate(data.decode(errors="replace").strip(), 60)
            raise BadFile(f"{self.path}{where}: {given} is not a JSON object")
        return row

    def _items(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The objects of a list, one after another: a data set of prompts is one line of a gigabyte."""
        for number, (size, item) in enumerate(list_items(self._bytes, str(self.path)), 1):
            self._longest = max(self._longest, size)
            if not isinstance(item, dict):
                raise BadFile(f"{self.path}, item {number}: {abbreviate(item, 60)} is not a JSON object")
            yield number, item

    def _object_chunks(
        self, objects: Iterator[tuple[int, dict[str, Any]]], keep: list[str], ragged: bool
    ) -> Iterator[TableChunk]:
        names: list[str] | None = keep if ragged else None  # the first object's
        for _, rows in self._taken(objects):
            if names is None:
                names = [name for name in keep if _has(rows[0][1], name)]
            late_names = [name for name in keep if name not in names]
            for number, row in rows if late_names else ():
                late = [name for name in late_names if _has(row, name)]
                if late:
                    raise BadFile(f"{self.path}, line {number}: has {late[0]!r}, which the lines before it lack")
            columns: dict[str, Sequence[Any]] = {name: [_cell(row, name) for _, row in rows] for name in names}
            yield TableChunk(self.path, columns, [n for n, _ in rows])


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


def _beginning(head: bytes) -> int:
    """Where the first line begins that is no comment; at a byte that is no blank."""
    at = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
    for line in head[at:].splitlines(keepends=True):
        if line.strip() and not line.startswith(b"#"):
            return at + len(line) - len(line.lstrip())
        at += len(line)
    return at


def _full(path: Path, lines: Sequence[int], rows: list[list[str]], width: int) -> tuple[list[int], list[list[str]]]:
    """The rows without empty lines and comments; one that is shorter or longer than the header is an error."""
    kept = [
        (line, row)
        for line, row in zip(lines, rows, strict=True)
        if any(row) and not (len(row) == 1 < width and row[0].startswith("#"))
    ]
    for line, row in kept:
        if len(row) != width:
            comment = "; a comment below the header has no second cell" if row[0].startswith("#") else ""
            raise BadFile(f"{path}, line {line}: {_count_cells(len(row))} where the header has {width}{comment}")
    return [line for line, _ in kept], [row for _, row in kept]


def _decode(data: bytes | bytearray) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        if b"NaN" not in data and b"Infinity" not in data:
            raise ValueError(str(error)) from None
        return json.loads(data)  # takes NaN and Infinity, which Python's own writer writes


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


def _open_parquet(path: Path, source: InputFile, closing: list[Any]) -> Any:
    """Parquet has its index at its end: what a pipe gives is put into a file without a name first."""
    parquet = load_library("pyarrow.parquet", f"{path} is Parquet, which", otherwise=" (CSV tables do not)")
    file: Any = source.file
    if not file.seekable():
        import shutil
        import tempfile

        file = tempfile.TemporaryFile()  # noqa: SIM115
        closing.append(file)
        try:
            shutil.copyfileobj(source.file, _Bounded(path, file))
        except OSError as error:
            raise unreadable(path, error) from None
        file.seek(0)
    try:
        opened = parquet.ParquetFile(file)
    except Exception as error:  # pyarrow's are of every kind
        raise _broken_parquet(path, error) from None
    if opened.metadata.num_rows > MAX_ROWS:
        raise BadFile(f"{path} has more than {MAX_ROWS:,} rows")
    return opened


class _Bounded:
    """A file that takes no more than so much."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self.file, self.size = path, file, 0

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > MAX_PARQUET:
            raise BadFile(f"{self.path} has more than {MAX_PARQUET:,} bytes: give it as a file rather than as a pipe")
        self.file.write(data)


def _parquet_chunks(path: Path, file: Any, columns: list[str]) -> Iterator[TableChunk]:
    before = 0
    try:
        for batch in file.iter_batches(CHUNK_ROWS * 16, columns=columns):
            yield TableChunk(path, batch.to_pydict(), range(before + 1, before + 1 + batch.num_rows))
            before += batch.num_rows
    except Exception as error:
        raise _broken_parquet(path, error) from None


def _broken_parquet(path: Path, error: Exception) -> BadFile:
    why = (str(error) or type(error).__name__).splitlines()[0]
    return BadFile(f"{path} cannot be read as Parquet: {abbreviate(why)[1:-1]}")


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
