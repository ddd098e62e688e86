"""``profile --import``: measured tables of others as rows of a kernel profile.

A file or a folder; of a folder every table whose columns are known. One profile is of one device, so a folder with
tables of several needs to be told which. Of rows that agree in all but their time the median is kept; rows of the
same kind, format, shape and source that the output has already are replaced, all others in it stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import BadFile, BadValue
from ..base.files import user_path
from ..specs import catalog
from ..specs.structs import Hardware
from . import importers, machine
from .importers import Table, Unusable
from .profile_csv import Profile
from .quality import marked

Say = Callable[[str], None]
SHOWN = 12  # sentences about files that were passed over


class Found(NamedTuple):
    """A table, where it lay, and the device it is of."""

    path: Path
    table: Table
    gpu: str | None
    sure: bool  # it says so itself, or the folders of what was given tell it apart

    @property
    def rows(self) -> int:
        """Measurements that became rows."""
        return sum(len(batch.seconds) for batch in self.table.batches)


def import_tables(path: str, output: str | None, *, gpu: str | None, say: Say) -> dict[str, int]:
    """Add the tables under a path to a profile: ``import_tables("gemm_perf.parquet", None, gpu=None, say=print)``

    Nothing is written unless all of it could be read.
    """
    root = user_path(path)
    if not root.exists():
        raise BadFile(f"no such file or folder: {root}")
    named = catalog.hardware(gpu) if gpu else None
    profile = Profile(user_path(output or f"{root.resolve().stem}.kernels.csv"))
    every, passed = _folder(root, profile.path) if root.is_dir() else ([_found(root)], [])
    found, device = _of_one_device(root, every, named)
    taken = {each.path for each in found}
    for line in _passed(root, passed, Counter(each.gpu for each in every if each.path not in taken)):
        say(line)
    for each in found:
        say(_summary(root, each))
    new = marked((batch for each in found for batch in each.table.batches), device)
    for line in new.notes:
        say(line)
    if not new.rows:
        raise BadFile(f"{root} has nothing to import: {_reasons(found)}")
    if device is None:
        say("the device is not known, so no row was held against its roof: name it with --gpu")
    counts = {
        "tables": len(found),
        "passed_over": len(every) + len(passed) - len(found),
        "imported": len(new.rows),
        "repeated": new.counts["repeated"],
        "skipped": sum(each.table.skipped.total() for each in found),
        "floor": new.counts["floor"],
        "roof": new.counts["roof"],
    }
    counts["replaced"], counts["kept"] = profile.add(new.rows)
    profile.write(_machine(found, device), {"imported": [_record(each) for each in found], "counts": counts})
    shown = (f"{number:,} {word.replace('_', ' ')}" for word, number in counts.items() if number)
    say(f"wrote {profile.path}: {', '.join(shown)}")
    return counts


# ------------------------------------------------------------------ finding


def _found(path: Path, root: Path | None = None) -> Found:
    table = importers.read(path)
    said = machine.recognise(table.device) or (machine.hinted(path.relative_to(root).parts) if root else None)
    return Found(path, table, said or machine.hinted(path.absolute().parts), said is not None)


def _folder(root: Path, output: Path) -> tuple[list[Found], list[str]]:
    """The tables of a folder, and why other files that look like tables were passed over."""
    found, passed = [], []
    for path in sorted(p for p in root.rglob("*") if p.suffix in importers.SUFFIXES and p.is_file()):
        hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if hidden or path.resolve() == output.resolve():
            continue
        try:
            found.append(_found(path, root))
        except Unusable as why:
            passed.append(str(why))
    if not found and not passed:
        raise BadFile(f"{root} has no tables: no files that end in {', '.join(importers.SUFFIXES)}")
    return found, passed


def _of_one_device(root: Path, found: list[Found], named: Hardware | None) -> tuple[list[Found], Hardware | None]:
    """The tables of the device that was named, or of the only one there is."""
    names = sorted({each.gpu for each in found if each.gpu})
    if named is None:
        if len(names) > 1:
            raise BadValue(f"{root} has tables of {', '.join(names)}: a profile is of one device, choose it with --gpu")
        return found, catalog.hardware(names[0]) if names else None
    mine = [each for each in found if each.gpu == named.name or not each.sure]
    if found and not mine:
        raise BadValue(f"{root} was measured on {' and '.join(names)}, not on {named.name}")
    return [each._replace(gpu=named.name) for each in mine], named


# ------------------------------------------------------------------ telling


def _passed(root: Path, passed: list[str], others: Counter[str | None]) -> list[str]:
    lines = [f"passed over: {line.removeprefix(f'{root}/')}" for line in passed[:SHOWN]]
    if len(passed) > SHOWN:
        lines.append(f"passed over: {len(passed) - SHOWN:,} files more")
    return lines + [f"passed over: {number:,} tables of {name}" for name, number in others.items()]


def _summary(root: Path, each: Found) -> str:
    name = each.path.relative_to(root) if root.is_dir() else each.path.name
    left = "".join(f"; skipped {number:,}: {reason}" for reason, number in each.table.skipped.most_common(4))
    return f"{name}: {each.table.label}, {each.rows:,} rows" + (f" of {each.gpu}" if each.gpu else "") + left


def _reasons(found: list[Found]) -> str:
    every: Counter[str] = Counter()
    for each in found:
        every += each.table.skipped
    reasons = "; ".join(f"{number:,} rows skipped: {reason}" for reason, number in every.most_common(3))
    return reasons or "it has no table of a known format"


def _machine(found: list[Found], device: Hardware | None) -> dict[str, Any]:
    """What is known of the device: its figures are the catalogue's, not measured ones."""
    names = Counter(each.table.device for each in found if each.table.device).most_common(1)
    said = names[0][0] if names else ""
    if device is None:
        return {"device": said or "unknown"}
    return {
        "device": said if machine.recognise(said) == device.name else device.name,
        "gpu": device.name,
        "compute_units": device.compute_units,
        "memory": device.memory,
        "cache": device.cache,
    }


def _record(each: Found) -> dict[str, Any]:
    return {
        "file": each.path.name,
        "format": each.table.label,
        "versions": each.table.versions,
        "rows": each.rows,
        "skipped": dict(each.table.skipped),
    }
