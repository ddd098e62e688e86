"""What is read for a user: a file, a FIFO, a pipe of the shell or standard input, unpacked by its first bytes.

with open_input(Path("trace.csv.zst")) as source:        # or /dev/stdin, /dev/fd/63, a FIFO
    source.head[:4], source.file.readline()
read_text(Path("config.json"))                           # all of a small file

Everything is read once, from front to back, and no more of it than can be of use: the rest of an endless file, or of
a small archive of something huge, is never held. Whatever is wrong is a sentence.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from .errors import BadFile
from .extras import install_line

HEAD = 2**16  # bytes that are looked at before anything is read
MAX_TEXT = 2**24  # bytes of a file that is read as a whole: a config.json of 16 MB has a list of every expert's weights
PATIENCE = 3.0  # s without a byte, after which a message says what is waited for
PACKED = (".gz", ".bz2", ".xz", ".zst")  # endings of names; the first bytes say what is inside
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/(?:self|thread-self|(\d+)))/fd/(\d{1,9})")
_ARCHIVES = {  # first bytes -> what unpacks them
    rb"\x1f\x8b\x08": "gzip",
    rb"BZh[1-9]1AY&SY": "bz2",
    rb"\xfd7zXZ\x00": "xz",
    rb"\x28\xb5\x2f\xfd": "zstd",
}
_PIPED: dict[tuple[str, int, int], bytes] = {}  # small files that came through pipes, which say it once


class InputFile(NamedTuple):
    """A file that is open, unpacked; its first bytes, which are still to be read."""

    file: io.BufferedReader
    head: bytes

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.file.close()


def open_input(path: Path) -> InputFile:
    """``with open_input(Path("requests.csv.gz")) as source: source.file.readline()``"""
    try:
        with _patience(path):
            raw: io.RawIOBase = io.FileIO(_opened(path), "rb")
            try:
                source = _begun(raw)
                packing = next((name for magic, name in _ARCHIVES.items() if re.match(magic, source.head)), None)
                if packing is None:
                    return source
                return _begun(_Stream(_unpacker(path, packing, source.file), source.file, packing))
            except BaseException:
                raw.close()
                raise
    except OSError as error:
        raise unreadable(path, error) from None


def read_bytes(path: Path, most: int = MAX_TEXT) -> bytes:
    """All of a small file; what a pipe said is kept, because it says it once."""
    key = _pipe_key(path)
    if key in _PIPED:
        return _PIPED[key]
    with open_input(path) as source:
        try:
            data = source.file.read(most + 1)
        except OSError as error:
            raise unreadable(path, error) from None
    if len(data) > most:
        check_text(path, data[:HEAD])
        raise BadFile(f"{path} has more than {most:,} bytes, which no such file has")
    if key is not None:
        _PIPED[key] = data
    return data


def read_text(path: Path) -> str:
    """All of a small text file: ``read_text(Path("h200.toml"))``"""
    data = read_bytes(path)
    check_text(path, data)
    try:
        return data.removeprefix(BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadFile(f"{path}, line {line}: not UTF-8 text (byte {data[error.start]:#04x})") from None


def check_text(path: Path, head: bytes) -> None:
    """Refuse what does not begin as text in UTF-8 does."""
    if head.startswith(_UTF_16):
        raise BadFile(f"{path} is UTF-16 text: save it as UTF-8, or give it as <(iconv -f UTF-16 -t UTF-8 {path.name})")
    if head.startswith(b"PK\x03\x04"):
        raise BadFile(f"{path} is a zip archive: give it unpacked, or as a pipe, <(unzip -p {path.name})")
    if b"\0" in head:
        raise BadFile(f"{path} is a binary file, not text: it has NUL bytes")


def unreadable(path: Path, error: Exception) -> BadFile:
    """The sentence for what a system or a library has against a file."""
    reasons = {errno.ENOENT: "there is no such file", errno.EISDIR: "it is a folder", errno.EBADF: "it is not open"}
    number = getattr(error, "errno", None)
    why = reasons.get(number or 0) or getattr(error, "strerror", None) or str(error)
    return BadFile(f"{path} cannot be read: {why}")


def descriptor(path: str | Path) -> int | None:
    """The open file that a path stands for: ``descriptor("/dev/stdout")  # 1``; links to such paths, too."""
    place = str(path)
    for _ in range(40):  # links in a row, as the system counts them
        place = os.path.normpath(place)
        number = _STANDARD.get(place)
        match = _DESCRIPTOR.fullmatch(place)
        if match and (match[1] is None or int(match[1]) == os.getpid()):
            number = int(match[2])
        if number is not None:
            return number
        try:
            place = os.path.join(os.path.dirname(place), os.readlink(place))
        except (OSError, ValueError):  # no link, or not one that may be followed; no name, with a NUL in it
            return None
    return None


def is_piped(text: str) -> bool:
    """Whether what a user named has no name of its own: ``is_piped("-")  # True``"""
    return text == "-" or descriptor(text) is not None


def file_stem(path: Path) -> str:
    """What the contents of a file go by, ``file_stem(Path("x/h200.toml.gz"))  # 'h200'``; of a pipe, that it is one."""
    number = descriptor(path)
    if number is not None:
        return "pipe" if number else "stdin"
    return Path(path.stem).stem if path.suffix in PACKED else path.stem


def has_ending(name: str, *endings: str) -> bool:
    """Whether a file is named as one of a kind, packed or not: ``has_ending("x.toml.gz", ".toml")  # True``"""
    packing = next((end for end in PACKED if name.endswith(end)), "")
    return name.removesuffix(packing).endswith(endings)


def is_input(path: Path) -> bool:
    """Whether there is something to read, a pipe included; a folder is not."""
    return descriptor(path) is not None or (path.exists() and not path.is_dir())


@contextlib.contextmanager
def note_if_it_takes_long(sentence: str) -> Iterator[None]:
    """Say on stderr what is waited for, once, after some seconds; the waiting goes on."""
    stream = sys.stderr
    timer = threading.Timer(PATIENCE, lambda: stream and print(f"inferometer: {sentence}", file=stream, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# ------------------------------------------------------------------ pieces


def _opened(path: Path) -> int:
    number = descriptor(path)
    handle = os.open(path, os.O_RDONLY) if number is None else os.dup(number)  # closing a copy leaves the other open
    if stat.S_ISDIR(os.fstat(handle).st_mode):
        os.close(handle)
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    return handle


@contextlib.contextmanager
def _patience(path: Path) -> Iterator[None]:
    """A plain file is read at once; of others the first bytes are waited for as long as it takes, with a message."""
    if descriptor(path) is None and not path.is_fifo() and not path.is_char_device():
        yield
        return
    with note_if_it_takes_long(f"waiting for data from {path}"):
        yield


def _pipe_key(path: Path) -> tuple[str, int, int] | None:
    try:
        number = descriptor(path)
        what = os.stat(path) if number is None else os.fstat(number)
    except OSError:
        return None  # opening it says so
    return None if number is None and stat.S_ISREG(what.st_mode) else (str(path), what.st_dev, what.st_ino)


def _begun(raw: Any) -> InputFile:
    """A stream whose first bytes are known and still to be read."""
    pieces, size = [], 0
    while size < HEAD and (piece := _read(raw, HEAD - size)):
        pieces.append(piece)
        size += len(piece)
    head = b"".join(pieces)
    if isinstance(raw, io.FileIO) and raw.seekable() and stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        raw.seek(-len(head), io.SEEK_CUR)
        return InputFile(io.BufferedReader(raw, HEAD), head)
    return InputFile(io.BufferedReader(_Stream(raw, raw, "", head), HEAD), head)


def _read(raw: Any, size: int) -> bytes:
    """Up to so many bytes; a pipe that another program made non-blocking is waited for."""
    while (data := raw.read(size)) is None:
        import select

        select.select([raw], [], [])
    return bytes(data)


class _Stream(io.RawIOBase):
    """Bytes that were read already, then the rest of a stream; what a library raises is an OSError."""

    def __init__(self, inner: Any, closes: Any, packing: str, head: bytes = b"") -> None:
        self._inner, self._closes, self._packing, self._head = inner, closes, packing, memoryview(head)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._head:
            size = min(len(buffer), len(self._head))
            buffer[:size], self._head = self._head[:size], self._head[size:]
            return size
        try:
            data = _read(self._inner, len(buffer))
        except Exception as error:  # of zlib, lzma, zstd …: each has its own
            if not self._packing:
                raise
            raise OSError(errno.EIO, f"it is broken {self._packing} ({error})") from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._closes.close()
        super().close()


def _unpacker(path: Path, packing: str, file: io.BufferedReader) -> Any:
    """A reader of what is packed; those of the standard library are loaded when they are needed."""
    if packing == "gzip":
        import gzip

        return gzip.GzipFile(fileobj=file)
    if packing == "bz2":
        import bz2

        return bz2.BZ2File(file)
    if packing == "xz":
        import lzma

        return lzma.LZMAFile(file)
    return _zstd(path, file)


def _zstd(path: Path, file: io.BufferedReader) -> Any:
    from importlib import import_module

    with contextlib.suppress(ImportError):
        return import_module("compression.zstd").ZstdFile(file)  # Python 3.14
    with contextlib.suppress(ImportError):
        return import_module("zstandard").ZstdDecompressor().stream_reader(file, read_across_frames=True)
    with contextlib.suppress(ImportError):
        return import_module("pyarrow").CompressedInputStream(file, "zstd")
    raise BadFile(
        f"{path} is compressed with zstd, which needs pyarrow: {install_line('pyarrow')}, "
        f"or give it as a pipe, <(zstdcat {path.name})"
    )
