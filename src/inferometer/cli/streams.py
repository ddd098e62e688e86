"""Standard streams that do not surprise: closed, full or broken ones, and encodings that lack our characters.

Results go to stdout and are worth an error when they cannot; notes go to stderr and are not.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
from typing import TextIO

PLAIN = "inferometer.plain"
REPLACEMENTS = dict(
    zip("×·−–—─│┊▕▏╱█▓▒░●◐○▶✓✗∞µ≈", ["x", "-", "-", "-", "-", "-", *"||||/#%:.*+o>+x", "inf", "u", "~"], strict=True)
) | {"→": "->", "≤": "<=", "≥": ">=", "±": "+-", "…": "...", "Σ": "sum ", "‖": "||", "²": "^2", "³": "^3"}


class LostOutput(Exception):
    """Stdout could not be written: ``LostOutput("No space left on device", broken_pipe=False)``"""

    def __init__(self, why: str, broken_pipe: bool) -> None:
        super().__init__(why)
        self.broken_pipe = broken_pipe


class ClosedStream(io.TextIOBase):
    """What stands for a stdout that was closed before we began: writing to it fails, as it would to a full disk."""

    def writable(self) -> bool:
        """Yes, but see `write`."""
        return True

    def write(self, text: str) -> int:
        """Always fails."""
        raise OSError(errno.EBADF, "it is closed")


def prepare() -> None:
    """Put something that can be written to behind every standard stream, and teach it plain characters."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # else the next file that is opened would be taken for the stream
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = ClosedStream()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    codecs.register_error(PLAIN, plain_characters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN)


def plain_characters(error: UnicodeError) -> tuple[str, int]:
    """What an encoding lacks in characters that all have: × is x, → is ->; others as in JSON, such as \\u00e9."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(REPLACEMENTS.get(character) or _escaped(character) for character in characters), error.end


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def echo(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print a result to stdout, or with ``err`` a line to stderr, where one that cannot be written is dropped."""
    stream = sys.stderr if err else sys.stdout
    if err and "\n" not in text and stream.isatty():
        text = _at_word_borders(text, stream)
    try:
        stream.write(f"{text}\n" if nl else text)
        stream.flush()
    except OSError as error:
        _discard(stream)
        if not err:
            raise LostOutput(error.strerror or str(error), isinstance(error, BrokenPipeError)) from None


def _at_word_borders(sentence: str, stream: TextIO) -> str:
    """A sentence over as many lines as the terminal needs, which would break words; in a log it is one line."""
    from ..views.text.paragraph import Paragraph
    from ..views.text.terminal import screen_width

    lines = Paragraph(sentence).lines(screen_width(stream))
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines)


def _discard(stream: TextIO) -> None:
    """Let a stream lead nowhere: what is in its buffer would be tried again, and complained about, at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
