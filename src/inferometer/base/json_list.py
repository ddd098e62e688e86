"""The items of a JSON list, one at a time: one line of a gigabyte is never held as a whole.

list(list_items(io.BytesIO(b'[{"a": 1}, {"b": []}]').read, "x.json"))  # [(8, {'a': 1}), (9, {'b': []})]
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from .errors import BadFile

BLOCK = 2**18  # bytes that are read at once
MAX_ITEM = 2**26  # characters of an item
_BLANK = re.compile(r"[ \t\r\n]*")
_NEAR = 16  # characters from the end of what was read within which an error may be that it ends there


def list_items(read: Callable[[int], bytes], where: str) -> Iterator[tuple[int, Any]]:
    """``list_items(file.read, "prompts.json")``: what stands in the list that a file is, each with its length."""
    buffer = _Buffer(read, where)
    buffer.take("[")
    count = 0
    while buffer.peek() != "]":
        if count:
            buffer.take(",")
        count += 1
        yield buffer.value(count)
    buffer.take("]")
    if buffer.peek():
        raise BadFile(f"{where}: not JSON (something follows its list)")


class _Buffer:
    """Text that is read as it is needed."""

    def __init__(self, read: Callable[[int], bytes], where: str) -> None:
        self._read, self._where = read, where
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._values = json.JSONDecoder()
        self._text, self._at, self._ended = "", 0, False

    def _more(self, size: int = BLOCK) -> None:
        data = self._read(size)
        self._ended = not data
        try:
            self._text, self._at = self._text[self._at :] + self._decode(data, final=not data), 0
        except UnicodeDecodeError:
            raise BadFile(f"{self._where} is not UTF-8 text") from None

    def peek(self) -> str:
        """The next character that is no blank; "" at the end."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            self._at = blank.end() if blank else self._at
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._more()

    def take(self, sign: str) -> None:
        """Pass over a character that must be there."""
        given = self.peek()
        if given != sign:
            raise BadFile(
                f"{self._where}: not JSON ({f'{given!r} where {sign!r} is expected' if given else 'it is cut off'})"
            )
        self._at += 1

    def value(self, number: int) -> tuple[int, Any]:
        """The next value, and how many characters it has."""
        self.peek()
        while True:
            try:
                value, end = self._values.raw_decode(self._text, self._at)
                size = end - self._at
                if isinstance(value, dict) or end + _NEAR < len(self._text) or self._ended:  # else a number may go on
                    self._at = end
                    return size, value
            except json.JSONDecodeError as error:
                size = len(self._text) - self._at
                in_text = error.msg.startswith("Unterminated string")
                if size > MAX_ITEM:
                    raise BadFile(
                        f"{self._where}, item {number}: more than {MAX_ITEM:,} characters, or not JSON"
                    ) from None
                if self._ended or (error.pos + _NEAR < len(self._text) and not in_text):
                    why = "it is cut off" if self._ended and in_text else error.msg
                    raise BadFile(f"{self._where}, item {number}: not JSON ({why})") from None
            except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets in brackets
                raise BadFile(f"{self._where}, item {number}: not JSON ({error})") from None
            self._more(max(BLOCK, size))
