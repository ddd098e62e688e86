"""Results on disk: written to a temporary name beside the target, then renamed, so nothing is ever half a file."""

from __future__ import annotations

from pathlib import Path

from ..base.errors import BadFile
from ..base.files import output_path, user_path, write_atomic


def write(path: str | Path, data: str | bytes) -> Path:
    """``write("out.json", text)``: all of it or nothing; what was there before is replaced only by a whole file."""
    return write_atomic(output_path(path), data)


def folder(path: str | Path) -> Path:
    """A folder to write into, made if it is not there."""
    place = user_path(str(path))
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadFile(f"folder {place} cannot be made: {error.strerror}") from None
    return place
