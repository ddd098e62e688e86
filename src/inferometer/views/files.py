"""Results on disk: written to a temporary name beside the target, then renamed, so nothing is ever half a file."""

from __future__ import annotations

from pathlib import Path

from ..errors import BadFile
from ..files import local, replaced


def write(path: str | Path, data: str | bytes) -> Path:
    """``write("out.json", text)``: all of it or nothing; what was there before is replaced only by a whole file."""
    target = local(str(path))
    if target.is_dir():
        raise BadFile(f"{target} is a folder; give the name of a file to write")
    if not target.parent.is_dir():
        raise BadFile(f"{target} cannot be written: No such file or directory")
    return replaced(target, data)


def folder(path: str | Path) -> Path:
    """A folder to write into, made if it is not there."""
    target = local(str(path))
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadFile(f"folder {target} cannot be made: {error.strerror}") from None
    return target
