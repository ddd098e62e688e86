"""Tables of sweeps as files, piece by piece: CSV, JSON, JSON lines, Parquet.

write("points.parquet", "parquet", pieces(grid), column_kinds(grid), grid.axes)
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from ..base.errors import BadValue, abbreviate
from ..base.files import growing, target
from .points import Piece, Texts, label

SCHEMA = "inferometer.sweep/1"
ENDINGS = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_ROWS = 1_000_000  # of a row group: readers skip whole groups, and compress each
Kinds = Mapping[str, str]


def form_of(path: str | Path, said: str | None = None) -> str:
    """The form that a file's name asks for; ``said`` is one that was asked for beside it."""
    found = ENDINGS.get(Path(path).suffix.lower())
    if said is not None and found not in (None, said):
        raise BadValue(f"--{said} and {abbreviate(str(path))} are two forms of one table: give one of them")
    if said is None and found is None:
        raise BadValue(
            f"{abbreviate(str(path))} does not say what to write: its name may end with {', '.join(ENDINGS)}"
        )
    return said or found or "csv"


def write(
    path: str | Path,
    form: str,
    pieces: Iterable[Piece],
    kinds: Kinds,
    axes: Mapping[str, Any],
    warnings: Iterable[str] = (),
) -> Path:
    """All of a table or nothing: the file has its name when its last row is in it."""
    place = target(path)
    arrow = _arrow() if form == "parquet" else None
    with growing(place) as file:
        if arrow:
            _parquet(arrow, file, pieces, kinds)
        else:
            for text in TEXTS[form](pieces, kinds, axes, warnings):
                file.write(text)
    return place


# ------------------------------------------------------------------ text


def csv_text(pieces: Iterable[Piece], kinds: Kinds, *_: Any) -> Iterator[bytes]:
    """A line of names, then a line per point; nothing stands where a point has no figure."""
    yield ",".join(kinds).encode() + b"\n"
    for piece in pieces:
        yield _lines(piece, kinds, lambda cells: b",".join(cells) + b"\n", _csv_cell)


def jsonl_text(pieces: Iterable[Piece], kinds: Kinds, *_: Any) -> Iterator[bytes]:
    """An object per line."""
    for piece in pieces:
        yield _lines(piece, kinds, lambda cells: _object(kinds, cells) + b"\n", msgspec.json.encode)


def json_text(
    pieces: Iterable[Piece],
    kinds: Kinds,
    axes: Mapping[str, Any],
    warnings: Iterable[str] = (),
) -> Iterator[bytes]:
    """One document: the axes, every point, and how many of them can be used."""
    said = {name: [label(value) for value in values] for name, values in axes.items()}
    yield msgspec.json.encode({"schema": SCHEMA, "axes": said})[:-1] + b',"rows":['
    points = usable = 0
    for piece in pieces:
        lines = _lines(piece, kinds, lambda cells: b",\n" + _object(kinds, cells), msgspec.json.encode)
        yield lines if points else lines[1:]
        points += len(piece)
        usable += int(np.broadcast_to(piece.columns["feasible"], piece.shape).sum())
    tail = {"points": points, "feasible": usable, "warnings": list(warnings)}
    yield b"],\n" + msgspec.json.encode(tail)[1:] + b"\n"


def _object(kinds: Kinds, cells: list[bytes]) -> bytes:
    return b"{" + b",".join(f'"{name}":'.encode() + cell for name, cell in zip(kinds, cells, strict=True)) + b"}"


TEXTS: dict[str, Callable[..., Iterator[bytes]]] = {"csv": csv_text, "json": json_text, "jsonl": jsonl_text}


def _lines(piece: Piece, kinds: Kinds, joined: Callable[[list[bytes]], bytes], cell: Callable[[Any], bytes]) -> bytes:
    """The rows of a piece: a line with its constants filled in, and with gaps that every point fills."""
    slots: list[bytes] = []
    varying: list[list[bytes]] = []
    for name, holds in kinds.items():
        found = piece.columns[name]
        if isinstance(found, Texts) and len(found.texts) > 1:
            texts = np.array([cell(text or None) for text in found.texts], object)[found.codes]
        elif isinstance(found, np.ndarray) and found.size > 1:
            texts = np.array(_numbers(name, holds, found, cell(None)), object).reshape(found.shape)
        else:
            value = found.texts[0] if isinstance(found, Texts) else found
            value = _rounded(name, holds, value).item() if isinstance(value, np.ndarray | float) else value
            slots.append(cell(None if value == "" or value != value else value).replace(b"%", b"%%"))
            continue
        slots.append(b"%b")
        varying.append(np.broadcast_to(texts, piece.shape).ravel().tolist())
    line = joined(slots)
    return b"".join(map(line.__mod__, zip(*varying, strict=True))) if varying else line % () * len(piece)


def _numbers(name: str, holds: str, values: np.ndarray, blank: bytes) -> list[bytes]:
    """Numbers as texts, all at once: ten times as fast as one by one."""
    text = msgspec.json.encode(_rounded(name, holds, values).ravel().tolist())[1:-1]
    return text.replace(b"null", blank).split(b",")


def _rounded(name: str, holds: str, values: Any) -> Any:
    """Figures to seven digits, bytes and counts to whole ones: nobody predicts more."""
    values = np.asarray(values)
    if holds == "switch" or values.dtype != float:
        return values
    if holds == "whole" or name.endswith("_bytes"):
        return values.astype(np.int64) if np.isfinite(values).all() else np.round(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** (6 - np.floor(np.log10(np.abs(values))))
        return np.where(values == 0, 0.0, np.round(values * scale) / scale)


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


def _arrow() -> Any:
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError:
        raise BadValue("a .parquet file needs pyarrow: pip install 'inferometer[tables]', or write .csv") from None


def _parquet(arrow: Any, file: BinaryIO, pieces: Iterable[Piece], kinds: Kinds) -> None:
    """Rows in groups of about a million; words are dictionaries, what is not there is null."""
    types = {
        "word": arrow.dictionary(arrow.int32(), arrow.string()),
        "whole": arrow.int64(),
        "switch": arrow.bool_(),
        "real": arrow.float64(),
    }
    schema = arrow.schema([(name, types[holds]) for name, holds in kinds.items()], {"schema": SCHEMA})
    few, reals = ([name for name, holds in kinds.items() if holds in of] for of in (("word", "whole"), ("real",)))
    with arrow.parquet.ParquetWriter(
        file, schema, use_dictionary=few, use_byte_stream_split=reals, compression="zstd", compression_level=1
    ) as writer:
        waiting: list[Any] = []
        for piece in pieces:
            columns = [_column(arrow, piece, name, schema.field(name).type) for name in kinds]
            waiting.append(arrow.RecordBatch.from_arrays(columns, schema=schema))
            if sum(batch.num_rows for batch in waiting) >= _ROWS:
                writer.write_table(arrow.Table.from_batches(waiting).unify_dictionaries())
                waiting = []
        if waiting:
            writer.write_table(arrow.Table.from_batches(waiting).unify_dictionaries())


def _column(arrow: Any, piece: Piece, name: str, kind: Any) -> Any:
    found = piece.column(name)
    if arrow.types.is_dictionary(kind):
        if not isinstance(found, Texts):
            found = Texts(np.zeros(len(piece), np.int32), (found,))
        texts = [text or None for text in found.texts]
        known = [text for text in texts if text is not None]
        place = np.array([known.index(text) if text is not None else -1 for text in texts], np.int32)[found.codes]
        return arrow.DictionaryArray.from_arrays(arrow.array(place, mask=place < 0), arrow.array(known, arrow.string()))
    if found is None:
        return arrow.nulls(len(piece), kind)
    values = found if isinstance(found, np.ndarray) else np.full(len(piece), found)
    return arrow.array(values, from_pandas=True).cast(kind)
