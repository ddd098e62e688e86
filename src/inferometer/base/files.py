"""Files as data, TOML or JSON: whatever is wrong with one is a sentence that says which file and why."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from .errors import BadFile, abbreviate

S = TypeVar("S")
_CONVERTING = threading.Lock()  # msgspec analyses a type at its first use; two threads that do so at once crash it


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dict; a broken one is a sentence that says where."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except RecursionError:
        raise BadFile(f"{path} is nested too deeply to be read") from None
    except ValueError as error:  # not TOML, not text, or a number of thousands of digits
        raise BadFile(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None


def user_path(text: str) -> Path:
    """A path that the user gave, ``~`` resolved; one that no system could have is a sentence."""
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadFile(f"{abbreviate(text)} is not a path that can be used: {why}") from None
    return path


def convert(data: Mapping[str, Any], kind: type[S], where: str) -> S:
    """A dict as a spec; what does not fit is a sentence that names the key."""
    try:
        with _CONVERTING:
            return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise BadFile(f"{where}: {error}") from None


def decode_json(data: bytes, kind: type[S]) -> S:
    """JSON that comes with the package as a spec."""
    with _CONVERTING:
        return msgspec.json.decode(data, type=kind)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; anything else is a sentence."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except RecursionError:
        raise BadFile(f"{path} is nested too deeply to be a config.json") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{path} is not valid JSON: {error}") from None
    except ValueError:
        raise BadFile(f"{path} has a number of thousands of digits, which no config.json has") from None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(data, dict):
        raise BadFile(f"{path} holds a {type(data).__name__}, not the object that a config.json is")
    return data


def output_path(text: str | Path) -> Path:
    """Where a result that the user named is to be written: a file in a folder that is there."""
    path = user_path(str(text))
    if path.is_dir():
        raise BadFile(f"{path} is a folder; give the name of a file to write")
    if not path.parent.is_dir():
        raise BadFile(f"{path} cannot be written: No such file or directory")
    return path


def write_atomic(path: Path, data: str | bytes) -> Path:
    """Write all of a file or nothing."""
    with atomic_writer(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)
    return path


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """A file to be written bit by bit: under a temporary name beside it, renamed when all of it is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        import tempfile  # loads half a dozen modules, which only writing needs

        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise BadFile(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except OSError as error:
        raise BadFile(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):  # gone already, unless something went wrong or the run was interrupted
            os.unlink(name)
