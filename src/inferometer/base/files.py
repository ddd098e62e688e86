"""Files as data, TOML or JSON, and results as files: whatever is wrong with one is a sentence that says which and why.

read_toml(input_path("-"))        write_atomic(output_path("out.json"), text)
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import stat
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from .errors import BadFile, abbreviate
from .input_file import descriptor, is_input, note_if_it_takes_long, read_bytes, read_text

S = TypeVar("S")
_TEMPORARY: set[Path] = set()  # files that have a name before they are whole, where the system knows no others
_CONVERTING = threading.Lock()  # msgspec analyses a type at its first use; two threads that do so at once crash it


# ------------------------------------------------------------------ reading


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dict; a broken one is a sentence that says where."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise BadFile(f"{path} is nested too deeply to be read") from None
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise BadFile(f"{path} is not valid TOML: {error}") from None


def input_path(text: str) -> Path:
    """A file that the user gave to be read: ``input_path("-")  # standard input``"""
    return user_path("/dev/stdin" if text == "-" else text)


_only_folder: Path | None = None  # of the process, so that no thread escapes it


def input_text(text: str) -> str | None:
    """All of a user's file, None if there is none of that name: ``input_text("compose.yml")``"""
    path = input_path(text)
    return read_text(path) if is_input(path) else None


@contextlib.contextmanager
def only_files_in(folder: str) -> Iterator[None]:
    """Inside of it a path that a user gives is not even looked at unless it is below a folder.

    ``with only_files_in("/tmp/x"): user_path("/etc/passwd")`` is refused: for requests over a network.
    """
    global _only_folder
    before, _only_folder = _only_folder, Path(os.path.abspath(folder))
    try:
        yield
    finally:
        _only_folder = before


def user_path(text: str) -> Path:
    """A path that the user gave, ``~`` resolved; one that no system could have is a sentence."""
    if text in settled:
        return settled[text]
    if _only_folder is not None and not Path(os.path.abspath(text)).is_relative_to(_only_folder):
        raise BadFile(f"{abbreviate(text)} is not in the catalogue, and files on the server are not read")
    try:
        path = Path(text).expanduser()
        path.exists()
        if b"\0" in os.fsencode(path):  # not every question about such a path says so
            raise ValueError("it contains a NUL character")
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadFile(f"{abbreviate(text)} is not a usable path: {why}") from None
    note_file(text, path)
    return path


@functools.cache
def package_digest() -> str:
    """A digest of this package, its data included: where it is equal, results are."""
    import hashlib

    root, digest = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


# ------------------------------------------------------------------ files of one machine for work on another

settled: dict[str, Path] = {}  # files of another machine, by the names that they have there: where they lie here
_notes: list[dict[str, Path]] = []


@contextlib.contextmanager
def noted_files() -> Iterator[dict[str, Path]]:
    """The user's files that are opened inside: ``with noted_files() as files: build_request(…)``"""
    files: dict[str, Path] = {}
    _notes.append(files)
    try:
        yield files
    finally:
        _notes.remove(files)


def note_file(name: str, path: Path) -> None:
    """A file of the user's is about to be opened, under a name that work on another machine will say, too."""
    for files in _notes:
        files[name] = path


def packed(files: Mapping[str, Path]) -> bytes:
    """Files by the names that the user gave them, with their content; of a folder its config.json."""
    import pickle
    import zlib

    content = []
    for name, path in sorted(files.items()):
        target = path / "config.json" if path.is_dir() else path
        data = None
        with contextlib.suppress(BadFile, OSError):  # what is not there is said by whoever needs it
            data = target.read_bytes() if target.is_file() else read_bytes(target) if is_stream(target) else None
        if data is not None:  # the folder's name is a model's name
            content.append((name, path.is_dir(), target.resolve().parent.name, target.name, data))
    return zlib.compress(pickle.dumps(content), 1)


@functools.lru_cache(8)
def _unpacked(files: bytes) -> dict[str, Path]:
    """Write files into a folder of this process, and say where each is."""
    import atexit
    import pickle
    import shutil
    import tempfile
    import zlib

    content = pickle.loads(zlib.decompress(files))
    if not content:
        return {}
    root = Path(tempfile.mkdtemp(prefix="inferometer-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    paths = {}
    for number, (name, is_folder, folder, file, data) in enumerate(content):
        place = root / str(number) / (folder or "files") / file
        place.parent.mkdir(parents=True)
        place.write_bytes(data)
        paths[name] = place.parent if is_folder else place
    return paths


def settle(files: bytes) -> None:
    """From now on, names of these files mean their content here; those of earlier work are forgotten."""
    settled.clear()
    settled.update(_unpacked(files))


def convert(data: Mapping[str, Any], kind: type[S], where: str) -> S:
    """A dict as a spec; what does not fit is a sentence that names the key."""
    try:
        with _CONVERTING:
            return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        from .spec_errors import explained

        with _CONVERTING:
            sentence = explained(data, kind) or str(error)
        raise BadFile(f"{where}: {sentence}") from None


def decode_json(data: bytes, kind: type[S]) -> S:
    """JSON that comes with the package as a spec."""
    with _CONVERTING:
        return msgspec.json.decode(data, type=kind)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; anything else is a sentence."""
    text = read_text(path)
    try:
        data = json.loads(text)
    except RecursionError:
        raise BadFile(f"{path} is nested too deeply to be a config.json") from None
    except json.JSONDecodeError as error:
        raise BadFile(f"{path} is not valid JSON: {error}") from None
    except ValueError:
        raise BadFile(f"{path} has a number of thousands of digits, which is not a valid config.json") from None
    if not isinstance(data, dict):
        raise BadFile(f"{path} holds a {type(data).__name__}, not a JSON object, as a config.json must be")
    return data


def read_toml_or_json(path: Path) -> dict[str, Any]:
    """Either, by the ending of its name, and else by its first letter: ``read_toml_or_json(Path("/dev/stdin"))``"""
    is_json = path.suffix == ".json" or (path.suffix != ".toml" and read_text(path).lstrip().startswith("{"))
    return read_json(path) if is_json else read_toml(path)


# ------------------------------------------------------------------ writing


def output_path(text: str | Path) -> Path:
    """Where a result that the user named is to be written: a file in a folder that is there; ``-`` is stdout."""
    path = user_path("/dev/stdout" if str(text) == "-" else str(text))
    if path.is_dir():
        raise BadFile(f"{path} is a folder; give the name of a file to write")
    try:
        there = is_stream(path) or Path(os.path.realpath(path)).parent.is_dir()
    except OSError:  # the current folder is gone
        there = False
    if not there:
        raise BadFile(f"{path} cannot be written: No such file or directory")
    return path


def is_stream(path: Path) -> bool:
    """Whether what is written to a path goes somewhere at once: a FIFO, a device, an open file of this process."""
    if descriptor(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def write_atomic(path: Path, data: str | bytes) -> Path:
    """Write all of a file or nothing."""
    return write_all({path: data})[0]


def write_all(contents: Mapping[Path, str | bytes]) -> list[Path]:
    """Write all of some files or none, scripts executable: ``write_all({Path("plan/serve.sh"): "#!/bin/bash …"})``"""
    with contextlib.ExitStack() as stack:
        for path, data in contents.items():
            file = stack.enter_context(atomic_writer(path, executable=path.suffix == ".sh"))
            with _cannot_write(path):
                file.write(data.encode() if isinstance(data, str) else data)
        with _signals_held():
            stack.close()
    return list(contents)


@contextlib.contextmanager
def atomic_writer(path: Path, *, executable: bool = False) -> Iterator[BinaryIO]:
    """A file to be written bit by bit, which has its name when all of it is there, and leaves nothing if it never is.

    ``with atomic_writer(Path("points.csv")) as file: file.write(b"batch_size,tpot_ms\\n")``. A link stays a link to
    the file that is replaced, which keeps its mode and owner. FIFOs, devices and ``/dev/stdout`` are written to as
    they are.
    """
    with _cannot_write(path):
        if is_stream(path):
            with _stream(path) as file:
                yield file
            return
        pending = _PendingFile(path)
        try:
            with pending.file as file:
                yield file
                pending.commit(executable)
        finally:
            pending.discard()


@contextlib.contextmanager
def _cannot_write(path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # the reader went away, which is no fault of the file
    except OSError as error:
        raise BadFile(f"{path} cannot be written: {error.strerror or error}") from None


def _stream(path: Path) -> BinaryIO:
    number = descriptor(path)
    if number is not None:
        for text in (sys.stdout, sys.stderr):  # what was printed before comes before
            if text is not None:
                text.flush()
        return os.fdopen(os.dup(number), "wb")
    with note_if_it_takes_long(f"waiting for a reader of {path}"):
        return os.fdopen(os.open(path, os.O_WRONLY), "wb")


class _PendingFile:
    """What will be a file: without a name where the system can do that (Linux), so that no end leaves it behind."""

    def __init__(self, path: Path) -> None:
        self.target = Path(os.path.realpath(path))
        folder = self.target.parent
        folder.mkdir(parents=True, exist_ok=True)
        self.before = self.target.stat() if self.target.exists() else None
        if self.before is not None and not os.access(self.target, os.W_OK):
            raise PermissionError(errno.EACCES, "Permission denied")
        self.name: Path | None = None
        self.in_place = False
        self.file = self._opened(folder)

    def _opened(self, folder: Path) -> BinaryIO:
        try:
            if not os.path.isdir("/proc/self/fd"):
                raise OSError(errno.EOPNOTSUPP, "it cannot be given a name later")
            return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666), "w+b")
        except (OSError, AttributeError):
            name = _temporary_name(folder)
        _remove_when_ended(name)
        try:
            handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except OSError:
            if self.before is None:
                raise
            import tempfile

            self.in_place = True  # a file that may be written in a folder that may not
            return tempfile.TemporaryFile()
        self.name = name
        return os.fdopen(handle, "w+b")

    def commit(self, executable: bool) -> None:
        """Give it the name; from here on it is the file."""
        self.file.flush()
        handle = self.file.fileno()
        if self.before is not None:
            with contextlib.suppress(OSError):  # only root may give files away
                os.fchown(handle, self.before.st_uid, self.before.st_gid)
            os.fchmod(handle, stat.S_IMODE(self.before.st_mode))
        if executable:
            mode = stat.S_IMODE(os.fstat(handle).st_mode)
            os.fchmod(handle, mode | (mode & 0o444) >> 2)
        with _signals_held():
            self._give_name()

    def _give_name(self) -> None:
        if self.in_place:
            return self._copy()
        if self.name is None and self.before is None:
            with contextlib.suppress(FileExistsError):
                return self._link(self.target)
        if self.name is None:
            name = _temporary_name(self.target.parent)
            self._link(name)
            self.name = name
        try:
            os.replace(self.name, self.target)
        except OSError as error:
            if error.errno != errno.EBUSY:  # a file that is mounted by itself, as containers have them
                raise
            self._copy()

    def _copy(self) -> None:
        """What cannot be replaced is written anew."""
        import shutil

        self.file.seek(0)
        with self.target.open("wb") as target:
            shutil.copyfileobj(self.file, target)

    def _link(self, name: Path) -> None:
        folder = os.open(name.parent, os.O_RDONLY)  # with a folder, os.link follows the link that /proc has
        try:
            os.link(f"/proc/self/fd/{self.file.fileno()}", name.name, dst_dir_fd=folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Leave nothing behind, if it has not become the file."""
        if self.name is not None:
            _TEMPORARY.discard(self.name)
            with contextlib.suppress(OSError):
                os.unlink(self.name)


def _temporary_name(folder: Path) -> Path:
    return folder / f".inferometer-{os.urandom(6).hex()}.tmp"


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Signals that end a process wait for the end of this, which is short."""
    import signal

    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _remove_when_ended(name: Path) -> None:
    """Where a temporary file has a name, SIGTERM and SIGHUP remove it before they end the process."""
    import signal

    _TEMPORARY.add(name)
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, frame: object) -> None:
    import signal

    for name in _TEMPORARY:
        with contextlib.suppress(OSError):
            os.unlink(name)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
