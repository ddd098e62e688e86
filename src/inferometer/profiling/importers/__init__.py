"""Measured tables of others, a file per format; the file name is the registration.

A format is two functions: ``claims(columns)`` says whether a table is its own by the names of its columns, never by
where it lies, and ``read(sheet)`` turns it into rows of a kernel profile.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...base import tabular
from ...base.errors import BadFile, abbreviate
from ...costs.kernels.kernel_rows import HEADER, SHAPE_DEFAULTS, SHAPE_KEYS

SUFFIXES = (".csv", ".txt", ".parquet")
MAX_ROWS = 5_000_000  # of a table that is imported as a whole
RawTable = tabular.TableChunk  # a whole table: cells by column, and the line of each row


class Unusable(BadFile):
    """A table that is not broken but cannot be used: in a folder it is passed over, alone it is an error."""


class RowBatch(NamedTuple):
    """Rows of one kind, column by column."""

    kind: str
    dtype: Sequence[str]
    dims: Mapping[str, Sequence[Any]]
    seconds: np.ndarray
    source: Sequence[str]


class ImportedTable(NamedTuple):
    """What a reader made of a file."""

    label: str  # the format and the table: "aiconfigurator gemm"
    device: str  # as the table says it; "" where it does not
    batches: list[RowBatch]
    skipped: Counter[str]  # reason -> measurements
    versions: dict[str, str]


class Reader(Protocol):
    """A format."""

    def claims(self, columns: frozenset[str]) -> bool:
        """Whether a table with these columns is of this format."""

    def read(self, sheet: RawTable) -> ImportedTable:
        """Its rows."""


@functools.cache
def formats() -> dict[str, Reader]:
    """The formats that are known: ``formats()["vidur"].claims(frozenset(columns))``"""
    readers: dict[str, Any] = {
        m.name: importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    }
    return readers


def read(path: Path) -> ImportedTable:
    """A file as rows of a kernel profile: ``read(Path("gemm_perf.parquet")).batches``"""
    try:
        table = tabular.open_table(path)
    except BadFile as error:  # no table at all
        raise Unusable(str(error)) from None
    with table:
        columns = frozenset(table.names)
        if set(HEADER) <= columns:
            raise Unusable(f"{path} is a kernel profile of inferometer already")
        for reader in formats().values():
            if reader.claims(columns):
                sheet = table.whole(MAX_ROWS)
                if not sheet.lines:
                    raise Unusable(f"{path} has a header but no rows")
                return reader.read(sheet)
    if any(name.startswith("version https://git-lfs") for name in columns):
        raise Unusable(f"{path} is a Git LFS pointer, not the table: fetch it with git lfs pull")
    shown = ", ".join(sorted(columns - {""})[:8]) + (" …" if len(columns) > 8 else "")
    raise Unusable(f"{path} is not a table of {', '.join(formats())}: its columns are {abbreviate(shown)}")


def needs(sheet: RawTable, columns: Iterable[str], what: str) -> None:
    """Refuse a table that lacks a column: ``needs(sheet, ("m", "n"), "a gemm table")``"""
    missing = [name for name in columns if name not in sheet.columns]
    if missing:
        raise BadFile(f"{sheet.path} lacks the column {missing[0]!r}, which {what} has")


def texts(sheet: RawTable, column: str, at: np.ndarray | None = None) -> list[str]:
    """A column as text, of some rows or of all."""
    cells = sheet.columns[column]
    chosen = cells if at is None else [cells[i] for i in at]
    return ["" if cell is None else str(cell) for cell in chosen]


def row_batch(
    kind: str,
    dtype: str | Sequence[str],
    dims: Mapping[str, Any],
    seconds: np.ndarray,
    source: str | Sequence[str],
    skipped: Counter[str],
    drop: Mapping[str, np.ndarray] | None = None,
) -> RowBatch:
    """Rows of a kind, less those that some reason speaks against; single values stand for a whole column."""
    keep, empty = np.ones(len(seconds), bool), np.zeros(len(seconds), bool)
    for key in SHAPE_KEYS[kind]:
        if key in dims and key not in SHAPE_DEFAULTS and key != "cached":  # what may be nothing
            empty |= np.asarray(dims[key]) < 1
    always = {"a size of zero": empty, "a time of zero: below the clock's resolution": ~(seconds > 0)}
    for reason, wrong in {**(drop or {}), **always}.items():
        skipped[reason] += int((keep & wrong).sum())
        keep &= ~wrong

    def column(value: Any) -> list[Any]:
        if isinstance(value, str) or np.ndim(value) == 0:
            return [value] * int(keep.sum())
        return [
            cell
            for cell, kept in zip(value.tolist() if isinstance(value, np.ndarray) else value, keep, strict=True)
            if kept
        ]

    chosen = {key: column(dims[key]) for key in SHAPE_KEYS[kind] if key in dims}
    return RowBatch(kind, column(dtype), chosen, seconds[keep], column(source))
