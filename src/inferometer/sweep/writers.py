"""Tables of sweeps as files, chunk by chunk: CSV, JSON, JSON lines, Parquet.

write("points.parquet", "parquet", chunks(grid), column_kinds(grid), grid.axes)
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from ..base.errors import BadValue, abbreviate
from ..base.extras import load_library
from ..base.files import atomic_writer, output_path
from .points import Categorical, Chunk, axis_cell

SCHEMA = "inferometer.sweep/1"
FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_ROW_GROUP = 1_000_000  # rows: readers skip whole groups, and each is compressed by itself
Kinds = Mapping[str, str]


def file_format(path: str | Path, chosen: str | None = None) -> str:
    """The format that a file's name says: ``file_format("points.csv")  # 'csv'``; ``chosen`` is one given beside it."""
    named = FORMATS.get(Path(path).suffix.lower())
    if chosen is not None and named not in (None, chosen):
        raise BadValue(f"`{chosen}` and {abbreviate(str(path))} are two formats of one table: give only one")
    if chosen is None and named is None:
        raise BadValue(f"{abbreviate(str(path))} has no known ending: use {', '.join(FORMATS)}, or / for a folder")
    return chosen or named or "csv"


def write(
    path: str | Path,
    format_name: str,
    stream: Iterable[Chunk],
    kinds: Kinds,
    axes: Mapping[str, Any],
    warnings: Iterable[str] = (),
) -> Path:
    """All of a table or nothing: the file has its name when its last row is in it."""
    place = output_path(path)
    arrow = parquet_library() if format_name == "parquet" else None
    with atomic_writer(place) as file:
        if arrow:
            _parquet(arrow, file, stream, kinds)
        else:
            for text in TEXT_FORMATS[format_name](stream, kinds, axes, warnings):
                file.write(text)
    return place


# ------------------------------------------------------------------ text


def csv_text(stream: Iterable[Chunk], kinds: Kinds, *_: Any) -> Iterator[bytes]:
    """A line of names, then a line per point; nothing stands where a point has no figure."""
    yield ",".join(kinds).encode() + b"\n"
    for chunk in stream:
        yield _lines(chunk, kinds, lambda cells: b",".join(cells) + b"\n", _csv_cell)


def jsonl_text(stream: Iterable[Chunk], kinds: Kinds, *_: Any) -> Iterator[bytes]:
    """An object per line."""
    for chunk in stream:
        yield _lines(chunk, kinds, lambda cells: _object(kinds, cells) + b"\n", msgspec.json.encode)


def json_text(
    stream: Iterable[Chunk],
    kinds: Kinds,
    axes: Mapping[str, Any],
    warnings: Iterable[str] = (),
) -> Iterator[bytes]:
    """One document: the axes, every point, and how many of them can be used."""
    cells = {name: [axis_cell(value) for value in values] for name, values in axes.items()}
    yield msgspec.json.encode({"schema": SCHEMA, "axes": cells})[:-1] + b',"rows":['
    points = usable = 0
    for chunk in stream:
        lines = _lines(chunk, kinds, lambda cells: b",\n" + _object(kinds, cells), msgspec.json.encode)
        yield lines if points else lines[1:]
        points += len(chunk)
        usable += int(np.broadcast_to(chunk.columns["feasible"], chunk.shape).sum())
    tail = {"points": points, "feasible": usable, "warnings": list(warnings)}
    yield b"],\n" + msgspec.json.encode(tail)[1:] + b"\n"


def _object(kinds: Kinds, cells: list[bytes]) -> bytes:
    return b"{" + b",".join(f'"{name}":'.encode() + cell for name, cell in zip(kinds, cells, strict=True)) + b"}"


TEXT_FORMATS: dict[str, Callable[..., Iterator[bytes]]] = {"csv": csv_text, "json": json_text, "jsonl": jsonl_text}


def _lines(chunk: Chunk, kinds: Kinds, join: Callable[[list[bytes]], bytes], cell: Callable[[Any], bytes]) -> bytes:
    """The rows of a chunk: a line with its constants filled in, and with gaps that every point fills."""
    slots: list[bytes] = []
    varying: list[list[bytes]] = []
    for name, holds in kinds.items():
        column = chunk.columns[name]
        if isinstance(column, Categorical) and len(column.categories) > 1:
            texts = np.array([cell(text or None) for text in column.categories], object)[column.codes]
        elif isinstance(column, np.ndarray) and column.size > 1:
            texts = np.array(_numbers(name, holds, column, cell(None)), object).reshape(column.shape)
        else:
            value = column.categories[0] if isinstance(column, Categorical) else column
            value = _rounded(name, holds, value).item() if isinstance(value, np.ndarray | float) else value
            slots.append(cell(None if value == "" or value != value else value).replace(b"%", b"%%"))
            continue
        slots.append(b"%b")
        varying.append(np.broadcast_to(texts, chunk.shape).ravel().tolist())
    line = join(slots)
    return b"".join(map(line.__mod__, zip(*varying, strict=True))) if varying else line % () * len(chunk)


def _numbers(name: str, holds: str, values: np.ndarray, blank: bytes) -> list[bytes]:
    """Numbers as texts, all at once: ten times as fast as one by one."""
    text = msgspec.json.encode(_rounded(name, holds, values).ravel().tolist())[1:-1]
    return text.replace(b"null", blank).split(b",")


def _rounded(name: str, holds: str, values: Any) -> Any:
    """Figures to seven digits, bytes and counts to whole ones: no prediction has more."""
    values = np.asarray(values)
    if holds == "switch" or values.dtype != float:
        return values
    if holds == "int" or name.endswith("_bytes"):
        return values.astype(np.int64) if np.isfinite(values).all() else np.round(values)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = 10.0 ** (6 - np.floor(np.log10(np.abs(values))))  # inf of 0, and of what is next to it
        return np.where(np.isinf(scale), values, np.round(values * scale) / scale)


def _csv_cell(value: Any) -> bytes:
    """One cell, quoted where it must be."""
    if value is None:
        return b""
    if not isinstance(value, str):
        return msgspec.json.encode(value)
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([value])
    return out.getvalue().encode()


# ------------------------------------------------------------------ parquet


def parquet_part(stream: Iterable[Chunk], kinds: Kinds, note: Callable[[], dict[str, str]]) -> bytes:
    """A Parquet file as bytes; ``note`` gives what is kept in its footer, when all rows are in it."""
    file = io.BytesIO()
    _parquet(parquet_library(), file, stream, kinds, note)
    return file.getvalue()


def parquet_library() -> Any:
    """pyarrow, or a sentence that says how to get it."""
    load_library("pyarrow.parquet", "a .parquet file", otherwise=", or write .csv")
    return load_library("pyarrow", "a .parquet file")


def _parquet(
    arrow: Any,
    file: BinaryIO,
    stream: Iterable[Chunk],
    kinds: Kinds,
    note: Callable[[], dict[str, str]] = dict,
) -> None:
    """Rows in groups of about a million; texts are dictionaries, what is missing is null."""
    types = {
        "text": arrow.dictionary(arrow.int32(), arrow.string()),
        "int": arrow.int64(),
        "switch": arrow.bool_(),
        "float": arrow.float64(),
    }
    schema = arrow.schema([(name, types[holds]) for name, holds in kinds.items()], {"schema": SCHEMA})
    few, reals = ([name for name, holds in kinds.items() if holds in of] for of in (("text", "int"), ("float",)))
    with arrow.parquet.ParquetWriter(
        file, schema, use_dictionary=few, use_byte_stream_split=reals, compression="zstd", compression_level=1
    ) as writer:
        waiting: list[Any] = []
        for chunk in stream:
            columns = [_column(arrow, chunk, name, schema.field(name).type) for name in kinds]
            waiting.append(arrow.RecordBatch.from_arrays(columns, schema=schema))
            if sum(batch.num_rows for batch in waiting) >= _ROW_GROUP:
                writer.write_table(arrow.Table.from_batches(waiting).unify_dictionaries())
                waiting = []
        if waiting:
            writer.write_table(arrow.Table.from_batches(waiting).unify_dictionaries())
        if footer := note():
            writer.add_key_value_metadata(footer)


def _column(arrow: Any, chunk: Chunk, name: str, kind: Any) -> Any:
    column = chunk.column(name)
    if arrow.types.is_dictionary(kind):
        if not isinstance(column, Categorical):
            column = Categorical(np.zeros(len(chunk), np.int32), (column,))
        texts = [text or None for text in column.categories]
        known = [text for text in texts if text is not None]
        place = np.array([known.index(text) if text is not None else -1 for text in texts], np.int32)[column.codes]
        return arrow.DictionaryArray.from_arrays(arrow.array(place, mask=place < 0), arrow.array(known, arrow.string()))
    if column is None:
        return arrow.nulls(len(chunk), kind)
    values = column if isinstance(column, np.ndarray) else np.full(len(chunk), column)
    return arrow.array(values, from_pandas=True).cast(kind)
