"""A sweep as a folder of Parquet files: resumable, in shards, on workers, and with no more memory than a part needs.

sweep_to_folder("points/", "llama-3.1-8b", "h200", batch_size="1:256:1", input_len="16:8000:16")
pyarrow.dataset.dataset("points/").to_table(columns=["tpot_ms"])        # pandas.read_parquet("points/")

A part is done when its file has its name. What is in it is in its footer; `_manifest.json` says which sweep it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..base.errors import BadFile, BadValue, WorkersLost, abbreviate
from ..base.files import noted_files, package_digest, packed, read_json, settled, user_path, write_atomic
from ..base.parallel_map import TaskPool, check_backend, worker_pool
from .grid import Grid
from .points import PART_POINTS, Chunk, GridPart, axis_cell, column_kinds, part_chunks, parts
from .sweep import checked_grid
from .writers import parquet_library, parquet_part

SCHEMA = "inferometer.sweep_parts/1"
MANIFEST = "_manifest.json"  # readers of datasets pass over names that begin so
_NOTE = "inferometer"  # key of a part's footer
_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")
Progress = Callable[[float], None]


class Tally(msgspec.Struct):
    """How many points there are, how many of them can be used, and why others cannot."""

    points: int = 0
    feasible: int = 0
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """Count the points of a chunk."""
        reason = chunk.columns["reason"]
        counts = np.bincount(reason.codes.ravel(), minlength=len(reason.categories)) * (len(chunk) // reason.codes.size)
        for text, count in zip(reason.categories, counts.tolist(), strict=True):
            if text and count:
                self.reasons[text] = self.reasons.get(text, 0) + count
            else:
                self.feasible += count
        self.points += len(chunk)

    def join(self, other: Tally) -> None:
        """Add another's counts."""
        self.points += other.points
        self.feasible += other.feasible
        for text, count in other.reasons.items():
            self.reasons[text] = self.reasons.get(text, 0) + count
        self.warnings = list(dict.fromkeys([*self.warnings, *other.warnings]))


class PartNote(msgspec.Struct):
    """The footer of a part."""

    plan: str
    part: int
    tally: Tally


def sweep_to_folder(
    folder: str | Path,
    model: Any,
    gpu: Any = "h100-sxm",
    *,
    resume: bool = False,
    shard: str | None = None,
    backend: str = "processes",
    jobs: int | None = None,
    address: str | None = None,
    progress: Callable[[int], Progress] = lambda points: lambda done: None,
    **axes: Any,
) -> Tally:
    """Every combination of the axes as ``part-00000.parquet`` … in a folder.

    ``sweep_to_folder("points/", "llama-3.1-8b", "h200", batch_size="1:256:1", shard="1/4")``

    ``resume``: go on after a run that was cut off. ``shard``: this process does every 4th part, from the first on. With
    ``jobs`` processes or a cluster, each worker computes a part at a time. ``progress`` is given the number of points,
    and returns a function that takes how many are done.
    """
    check_backend(backend, jobs, address)
    first, step = _shard(shard)
    parquet_library()
    with ExitStack() as stack:
        pool = None
        if backend != "processes" or (jobs or 1) > 1:
            pool = stack.enter_context(worker_pool(backend, jobs, address))
        with noted_files() as files:
            grid = checked_grid(model, gpu, to_file=True, **axes)
        run = _FolderRun(Path(user_path(str(folder))), grid, {"model": model, "gpu": gpu, **axes}, files)
        todo = run.begin(range(first, 10**9, step), resume)
        reached = progress(sum(part.points for part in todo) + run.tally.points)
        if pool is None:
            run.here(todo, reached)
        else:
            pool.carry(files)
            run.on_workers(pool, todo, reached, writes=backend == "processes")
    return run.tally


def _shard(text: str | None) -> tuple[int, int]:
    """Number of the first part, and the distance to the next: ``_shard("2/4")  # (1, 4)``"""
    if text is None:
        return 0, 1
    match = _SHARD.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise BadValue(f"`shard` must be a part and the number of parts, such as 1/4, not {abbreviate(text)}")
    return int(match[1]) - 1, int(match[2])


class _FolderRun:
    """A folder that is being filled."""

    def __init__(self, folder: Path, grid: Grid, arguments: dict[str, Any], files: Mapping[str, Path]) -> None:
        self.folder, self.grid, self.arguments = folder, grid, arguments
        self.manifest = _manifest(grid, files)
        self.plan: str = self.manifest["plan"]
        self.tally = Tally()

    def begin(self, numbers: range, resume: bool) -> list[GridPart]:
        """The parts that are to be done; those that are there are counted."""
        self._check_folder()
        todo: list[GridPart] = []
        for part in islice(parts(self.grid), numbers.start, None, numbers.step):
            note = _read_note(self.path(part.number))
            if note is None:
                todo.append(part)
                continue
            if not resume:
                raise BadValue(f"{self.folder} already has parts of this sweep: use `resume` to compute the rest")
            if note.plan != self.plan:
                raise BadFile(f"{self.path(part.number)} belongs to another sweep than the folder's {MANIFEST}")
            self.tally.join(note.tally)
        return todo

    def _check_folder(self) -> None:
        """Begin the folder, or see that it is of this very sweep."""
        place = self.folder / MANIFEST
        if place.exists():
            known = read_json(place)
            if known.get("plan") != self.plan:
                same = known.get("axes") == self.manifest["axes"]
                why = "another version of inferometer, or of a file" if same else "other axes"
                raise BadFile(f"{self.folder} has a sweep with {why}: give another folder, or delete it")
            return
        with suppress(OSError):
            if any(self.folder.iterdir()):
                raise BadFile(f"{self.folder} has files that do not belong to a sweep: give an empty or new folder")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadFile(f"{self.folder} cannot be written: {error.strerror}") from None
        write_atomic(place, msgspec.json.format(msgspec.json.encode(self.manifest), indent=1) + b"\n")

    def path(self, number: int) -> Path:
        """The file of a part."""
        return self.folder / f"part-{number:05}.parquet"

    def here(self, todo: list[GridPart], reached: Progress) -> None:
        """Compute parts in this process, on all cores; the next begins while one is written."""
        stream = part_chunks(self.grid, todo)
        for part in todo:
            data, tally = _part_data(self.grid, self.plan, part, stream)
            write_atomic(self.path(part.number), data)
            self._count(tally, reached)

    def on_workers(self, pool: TaskPool, todo: list[GridPart], reached: Progress, writes: bool) -> None:
        """Compute parts on workers, which write them where they see this machine's files."""
        folder = str(self.folder.absolute()) if writes else None
        work = ((self.arguments, self.plan, part, folder) for part in todo)
        try:
            for number, (data, tally) in pool.completed(_compute_part, work):
                if data:
                    write_atomic(self.path(todo[number].number), data)
                self._count(tally, reached)
        except WorkersLost as error:
            left = sum(_read_note(self.path(part.number)) is None for part in todo)
            raise error.with_sentence(
                f"{error.sentence}; {left:,} parts are left: use `resume` to compute them"
            ) from None

    def _count(self, tally: Tally, reached: Progress) -> None:
        self.tally.join(tally)
        reached(self.tally.points)


def _manifest(grid: Grid, files: Mapping[str, Path]) -> dict[str, Any]:
    """What makes a sweep this one: its axes, the files that it reads, and the code."""
    axes = {name: [axis_cell(value) for value in values] for name, values in grid.axes.items()}
    key = {
        "axes": axes,
        "columns": list(column_kinds(grid)),
        "part_points": PART_POINTS,
        "files": hashlib.sha256(packed(files)).hexdigest(),
        "code": package_digest(),
    }
    plan = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:32]
    count = sum(1 for _ in parts(grid))
    return {"schema": SCHEMA, "plan": plan, "code": key["code"], "points": grid.points, "parts": count, "axes": axes}


def _read_note(path: Path) -> PartNote | None:
    """The footer of a part; None if the file is not there, or cannot be read."""
    if not path.exists():
        return None
    arrow = parquet_library()
    with suppress(OSError, ValueError, KeyError, msgspec.MsgspecError):  # Arrow's errors are values and systems'
        metadata = arrow.parquet.read_metadata(path).metadata
        return msgspec.json.decode(metadata[_NOTE.encode()], type=PartNote)
    return None


def _part_data(grid: Grid, plan: str, part: GridPart, stream: Iterator[Chunk]) -> tuple[bytes, Tally]:
    """A part as a file, from the chunks that come next."""
    tally = Tally()

    def own() -> Iterator[Chunk]:
        while tally.points < part.points:
            chunk = next(stream)
            tally.add(chunk)
            yield chunk

    def note() -> dict[str, str]:
        tally.warnings = list(grid.warnings)
        return {_NOTE: msgspec.json.encode(PartNote(plan, part.number, tally)).decode()}

    return parquet_part(own(), column_kinds(grid), note), tally


_GRIDS: dict[tuple[Any, ...], Grid] = {}  # of a worker: the one whose parts it computes


def _compute_part(work: tuple[dict[str, Any], str, GridPart, str | None]) -> tuple[bytes, Tally]:
    """One part on a worker: its bytes, or none where it is written already."""
    arguments, plan, part, folder = work
    key = (plan, *settled.values())
    if key not in _GRIDS:
        _GRIDS.clear()
        _GRIDS[key] = Grid(**arguments)
    data, tally = _part_data(_GRIDS[key], plan, part, part_chunks(_GRIDS[key], [part], threads=1))
    if folder is None:
        return data, tally
    write_atomic(Path(folder) / f"part-{part.number:05}.parquet", data)
    return b"", tally
