"""Results on disk: written to a temporary name beside the target, then renamed, so nothing is ever half a file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from ..errors import BadFile
from ..files import local


def write(path: str | Path, data: str | bytes) -> Path:
    """``write("out.json", text)``: all of it or nothing; what was there before is replaced only by a whole file."""
    target = local(str(path))
    if target.is_dir():
        raise BadFile(f"{target} is a folder; give the name of a file to write")
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise BadFile(f"{target} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise BadFile(f"{target} cannot be written: {error.strerror}") from None
    return target


def folder(path: str | Path) -> Path:
    """A folder to write into, made if it is not there."""
    target = local(str(path))
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadFile(f"folder {target} cannot be made: {error.strerror}") from None
    return target
