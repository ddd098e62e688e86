"""Regular expressions of a config, matched by hand: a file is never handed to an engine that may run for hours.

What configs write is read exactly: characters, ``.``, ``\\.``, ``\\d``, ``[0-9a-z]`` with ``*``, ``+`` or ``?``, and
alternatives in brackets, ``(gate|up)_proj``. Of anything else the longest run of plain characters must occur.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

MOST = 1000  # alternatives of a pattern, and characters of one, beyond which it is only searched for plain text


class PatternPiece(NamedTuple):
    """One kind of character, and how often."""

    fits: Callable[[str], bool]
    least: int = 1
    repeats: bool = False


def matches(pattern: str, name: str) -> bool:
    """Whether a name begins with what the pattern describes: ``matches(r".*mlp\\.(gate|up)_proj", "a.mlp.up_proj")``"""
    ways = _read(pattern)
    if ways is None:
        plain = max(re.findall(r"\w+", re.sub(r"\\[a-zA-Z]", " ", pattern)), key=len, default="")
        return len(plain) > 1 and plain in name
    return any(_runs(pieces, name, whole) for pieces, whole in ways)


@functools.lru_cache(maxsize=1000)
def _read(pattern: str) -> list[tuple[list[PatternPiece], bool]] | None:
    """Each way to match as pieces, and whether it must reach the name's end; None if it is not all understood."""
    found = []
    for way in _expanded(pattern):
        pieces = _pieces(way.removeprefix("^").removesuffix("$"))
        if pieces is None:
            return None
        found.append((pieces, way.endswith("$")))
    return found or None


def _expanded(pattern: str) -> list[str]:
    """The pattern without its alternatives, once for each; empty if that is too much or the brackets do not pair."""
    ways, done = [pattern], 0
    while done < len(ways):
        way = ways[done]
        inner = re.search(r"(?<!\\)\((?:\?:)?([^()]*)\)(?![*+?{])", way)
        if inner is None:
            done += 1
            continue
        ways[done : done + 1] = [way[: inner.start()] + word + way[inner.end() :] for word in inner[1].split("|")]
        if len(ways) > MOST or len(pattern) > MOST:
            return []
    return ways


def _pieces(text: str) -> list[PatternPiece] | None:
    """A pattern without alternatives as pieces in a row; None if it has anything else."""
    found: list[PatternPiece] = []
    for token in re.finditer(r"(\\.|\[[\w.-]+\]|[^\\()\[\]{}|^$*+?])([*+?]?)|(.)", text, re.S):
        word, often, other = token.groups()
        fits = None if other else _fits(word)
        if fits is None:
            return None
        found.append(PatternPiece(fits, 0 if often in ("*", "?") and often else 1, often in ("*", "+") and bool(often)))
    return found


def _fits(word: str) -> Callable[[str], bool] | None:
    if word == ".":
        return lambda c: True
    if word == "\\d":
        return str.isdigit
    if word == "\\w":
        return lambda c: c.isalnum() or c == "_"
    if word.startswith("["):
        ranges = re.findall(r"(.)-(.)", word[1:-1])
        single = re.sub(r".-.", "", word[1:-1])
        return lambda c: c in single or any(low <= c <= high for low, high in ranges)
    if word.startswith("\\"):
        return None if word[1].isalnum() else lambda c: c == word[1]
    return lambda c: c == word


def _runs(pieces: list[PatternPiece], name: str, whole: bool) -> bool:
    """All places that the pieces so far can end at, moved on piece by piece: no way is tried twice."""
    places = {0}
    for piece in pieces:
        after = set(places) if piece.least == 0 else set()
        front = places
        while front:
            front = {i + 1 for i in front if i < len(name) and piece.fits(name[i])} - after
            after |= front
            if not piece.repeats:
                break
        places = after
    return len(name) in places if whole else bool(places)
