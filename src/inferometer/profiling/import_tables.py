"""``profile --import``: measured tables of others as rows of a kernel profile.

A file or a folder; of a folder every table with known columns. One profile is of one device, so a folder with
tables of several needs its name. Of rows that agree in all but their time the median is kept; rows of the
same kind, format, shape and source that the output has already are replaced, all others in it stay.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import BadFile, BadValue, abbreviate
from ..base.files import input_path, user_path
from ..base.input_file import PACKED, file_stem, is_input
from ..specs import catalog
from ..specs.arguments import flag
from ..specs.device_names import is_same
from ..specs.structs import Hardware
from . import importers, machine
from .importers import ImportedTable, Unusable
from .profile_csv import ProfileFile
from .quality import flag_rows
from .timer import Log

SHOWN = 12  # sentences about files that were passed over


class LocatedTable(NamedTuple):
    """A table, where it lay, and the device it is of."""

    path: Path
    table: ImportedTable
    gpu: str | None
    sure: bool  # it says so itself, or the folders of what was given tell it apart

    @property
    def rows(self) -> int:
        """Measurements that became rows."""
        return sum(len(batch.seconds) for batch in self.table.batches)


def import_tables(path: str, output: str | None, *, gpu: str | None, say: Log) -> dict[str, int]:
    """Add the tables under a path to a profile: ``import_tables("gemm_perf.parquet", None, gpu=None, say=print)``

    Nothing is written unless all of it could be read.
    """
    root = input_path(path)
    if not root.is_dir() and not is_input(root):
        raise BadFile(f"no such file or folder: {root}")
    named = catalog.hardware(gpu) if gpu else None
    profile = ProfileFile(user_path(output or f"{_output_stem(root)}.kernels.csv"))
    every, passed = _folder(root, profile.path) if root.is_dir() else ([_found(root)], [])
    tables, device = _of_one_device(root, every, named)
    taken = {each.path for each in tables}
    for line in _passed(root, passed, Counter(each.gpu for each in every if each.path not in taken)):
        say(line)
    for each in tables:
        say(_summary(root, each))
    for other in sorted({each.table.device for each in tables if named and each.table.device}):
        if named is not None and not is_same(other, named):
            say(f"warning: rows say that they were measured on {abbreviate(other)}, but are imported as {named.name}")
    new = flag_rows((batch for each in tables for batch in each.table.batches), device)
    for line in new.notes:
        say(line)
    if not new.rows:
        raise BadFile(f"{root} has nothing to import: {_reasons(tables)}")
    if device is None:
        say(f"the device is not known, so no row was checked against its roofline: name it with {flag('gpu')}")
    counts = {
        "tables": len(tables),
        "passed_over": len(every) + len(passed) - len(tables),
        "imported": len(new.rows),
        "repeated": new.counts["repeated"],
        "skipped": sum(each.table.skipped.total() for each in tables),
        "floor": new.counts["floor"],
        "roof": new.counts["roof"],
    }
    counts["replaced"], counts["kept"] = profile.add(new.rows)
    profile.write(_machine(tables, device), {"imported": [_record(each) for each in tables], "counts": counts})
    shown = (f"{number:,} {word.replace('_', ' ')}" for word, number in counts.items() if number)
    say(f"wrote {profile.path}: {', '.join(shown)}")
    return counts


def _output_stem(root: Path) -> str:
    return root.resolve().stem if root.is_dir() else file_stem(root)


# ------------------------------------------------------------------ finding


def _found(path: Path, root: Path | None = None) -> LocatedTable:
    table = importers.read(path)
    said = machine.recognise(table.device) or (machine.device_in_path(path.relative_to(root).parts) if root else None)
    return LocatedTable(path, table, said or machine.device_in_path(path.absolute().parts), said is not None)


def _folder(root: Path, output: Path) -> tuple[list[LocatedTable], list[str]]:
    """The tables of a folder, and why other files that look like tables were passed over."""
    tables, passed = [], []
    for path in sorted(p for p in root.rglob("*") if _ending(p) in importers.SUFFIXES and p.is_file()):
        hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if hidden or path.resolve() == output.resolve():
            continue
        try:
            tables.append(_found(path, root))
        except Unusable as why:
            passed.append(str(why))
    if not tables and not passed:
        raise BadFile(f"{root} has no tables: no files that end in {', '.join(importers.SUFFIXES)}")
    return tables, passed


def _ending(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def _of_one_device(
    root: Path, tables: list[LocatedTable], named: Hardware | None
) -> tuple[list[LocatedTable], Hardware | None]:
    """The tables of the device that was named, or of the only one there is."""
    names = sorted({each.gpu for each in tables if each.gpu})
    if named is None:
        if len(names) > 1:
            raise BadValue(
                f"{root} has tables of {', '.join(names)}: a profile covers one device; choose it with `gpu`"
            )
        return tables, catalog.hardware(names[0]) if names else None
    matching = [each for each in tables if each.gpu == named.name or not each.sure]
    if tables and not matching:
        raise BadValue(f"{root} was measured on {' and '.join(names)}, not on {named.name}")
    return [each._replace(gpu=named.name) for each in matching], named


# ------------------------------------------------------------------ telling


def _passed(root: Path, passed: list[str], others: Counter[str | None]) -> list[str]:
    lines = [f"skipped: {line.removeprefix(f'{root}/')}" for line in passed[:SHOWN]]
    if len(passed) > SHOWN:
        lines.append(f"skipped: {len(passed) - SHOWN:,} more files")
    return lines + [f"skipped: {number:,} tables of {name}" for name, number in others.items()]


def _summary(root: Path, each: LocatedTable) -> str:
    name = each.path.relative_to(root) if root.is_dir() else each.path.name
    left = "".join(f"; skipped {number:,}: {reason}" for reason, number in each.table.skipped.most_common(4))
    return f"{name}: {each.table.label}, {each.rows:,} rows" + (f" of {each.gpu}" if each.gpu else "") + left


def _reasons(tables: list[LocatedTable]) -> str:
    every: Counter[str] = Counter()
    for each in tables:
        every += each.table.skipped
    reasons = "; ".join(f"{number:,} rows skipped: {reason}" for reason, number in every.most_common(3))
    return reasons or "no table is in a known format"


def _machine(tables: list[LocatedTable], device: Hardware | None) -> dict[str, Any]:
    """What is known of the device: its figures are the catalogue's, not measured ones."""
    names = Counter(each.table.device for each in tables if each.table.device).most_common(1)
    name = names[0][0] if names else ""
    if device is None:
        return {"device": name or "unknown"}
    return {
        "device": name if machine.recognise(name) == device.name else device.name,
        "gpu": device.name,
        "compute_units": device.compute_units,
        "memory": device.memory,
        "cache": device.cache,
    }


def _record(each: LocatedTable) -> dict[str, Any]:
    return {
        "file": each.path.name,
        "format": each.table.label,
        "device": each.table.device,
        "versions": each.table.versions,
        "rows": each.rows,
        "skipped": dict(each.table.skipped),
    }
