"""The rows of a kernel profile: which kinds of kernel there are, and which sizes make the shape of each.

A shape is one cell, ``m=8 n=4096 k=4096``, its keys always in this order. A key with a default is written only where it
differs from it. What must not be used carries a flag, the text after `` !`` in the row's source.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from ..base.errors import BadFile, abbreviate
from ..base.files import write_atomic
from .machine import SCHEMA, Record, now, recognise

HEAD = ("kind", "dtype", "shape", "seconds", "source")
KEYS: dict[str, tuple[str, ...]] = {
    "linear": ("m", "n", "k"),
    "prefill_attention": ("seqs", "heads", "kv_heads", "head_dim", "new", "context", "window", "kv_dtype"),
    "decode_attention": ("seqs", "heads", "kv_heads", "head_dim", "context", "window", "kv_dtype"),
    "mixed_attention": ("new", "cached", "seqs", "context", "heads", "kv_heads", "head_dim", "kv_dtype"),
    "mla_prefill": ("seqs", "heads", "new", "context", "qk_dim", "v_dim", "kv_dtype"),
    "mla_decode": ("seqs", "heads", "context", "kv_rank", "rope_dim", "kv_dtype"),
    "moe": ("tokens", "hidden", "inner", "experts", "top_k", "skew", "ep"),
    "norm": ("m", "n"),
    "activation": ("m", "n"),
    "rope": ("m", "heads", "kv_heads", "head_dim"),
    "kv_write": ("m", "kv_heads", "head_dim", "kv_dtype"),
    "embedding": ("m", "n", "rows"),
    "sampler": ("m", "n"),
    "quantize": ("m", "n", "block"),
    "copy": ("bytes",),
    "launch": ("kernels",),
    "graph_replay": ("kernels",),
    "all_reduce": ("bytes", "ranks", "library"),
    "all_gather": ("bytes", "ranks", "library"),
    "reduce_scatter": ("bytes", "ranks", "library"),
    "all_to_all": ("bytes", "ranks", "library"),
    "send": ("bytes", "ranks", "library"),
}
DEFAULTS: dict[str, Any] = {"window": 0, "kv_dtype": "", "skew": 0.0, "ep": 1, "block": 0, "library": ""}
MARK = " !"  # what separates a source from its flags


def shapes(kind: str, dims: Mapping[str, Sequence[Any]]) -> list[str]:
    """The cells of many rows: ``shapes("norm", {"m": [1, 8], "n": [64, 64]})  # ["m=1 n=64", "m=8 n=64"]``"""
    parts = [_pieces(key, dims[key]) for key in KEYS[kind] if key in dims]
    return ["".join(row)[1:] for row in zip(*parts, strict=True)]


def _pieces(key: str, values: Iterable[Any]) -> list[str]:
    nothing = DEFAULTS.get(key)
    return ["" if value == nothing else f" {key}={value:g}" if key == "skew" else f" {key}={value}" for value in values]


def unflagged(source: str) -> str:
    """A source without its flags: ``unflagged("vllm 0.24.0 !floor")  # "vllm 0.24.0"``"""
    return source.partition(MARK)[0]


# ------------------------------------------------------------------ sheet
# A kernel profile on disk: one CSV row a shape, added as it is found, so that nothing is lost when a run stops.
#
# A run that is cut off may leave half a line at the end; that line is dropped and its shape measured again.


Key = tuple[str, str, str]  # kind, dtype, shape


def shape_of(row: Mapping[str, Any]) -> str:
    """The shape as one cell: ``shape_of({"kind": "norm", "dtype": "bf16", "m": 8, "n": 64})  # 'm=8 n=64'``"""
    return " ".join(
        f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items() if k not in ("kind", "dtype")
    )


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
            f"{path} is not a kernel profile: it begins with {abbreviate(','.join(lines[0]))}, not {','.join(HEAD)}"
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
            raise BadFile(f"{path}, line {number}: {abbreviate(','.join(line))} is not a row of {wants}") from None
    return found


class Sheet:
    """A profile that rows are added to: ``with Sheet(Path("kernels.csv")) as sheet: sheet.add(row, 1e-5, "torch")``"""

    def __init__(self, path: Path) -> None:
        self.path = path
        keep, rest = _lines(path)
        if not keep and not ",".join(HEAD).encode().startswith(rest.rstrip()):
            raise BadFile(f"{path} is not a kernel profile: it begins with {abbreviate(rest[:60])}")
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


# ------------------------------------------------------------------ profile
# A kernel profile as a whole: rows are put into what a file has, and it is replaced by a whole file or not at all.


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
        write_atomic(self.path, text.getvalue())
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
        raise BadFile(
            f"{path} is there and is not a kernel profile: it begins with {abbreviate(begins)}; give another -o"
        )
    rows = []
    for number, line in enumerate(lines[1:], 2):
        try:
            kind, dtype, shape, seconds, source = line
            rows.append(Row(kind, dtype, shape, float(seconds), source))
        except ValueError:
            raise BadFile(
                f"{path}, line {number}: {abbreviate(','.join(line))} is not a row of {','.join(HEAD)}"
            ) from None
    return rows


def _device(path: Path) -> str | None:
    """The device that the record beside a profile names, if there is one; Record complains about a broken one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        said = json.loads(path.with_suffix(".json").read_text(encoding="utf-8")).get("device")
        return said if isinstance(said, str) else None
    return None
