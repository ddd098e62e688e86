"""Regular expressions of a config, matched by hand: a file is never handed to an engine that may run for hours.

What configs write is read exactly: characters, ``.``, ``\\.``, ``\\d``, ``\\w``, ``[0-9a-z]`` with ``*``, ``+`` or
``?``, ``^`` and ``$``, and alternatives in brackets, ``(gate|up)_proj``. Of anything else, the longest run of plain
characters must occur.

A pattern becomes a list of instructions, no longer than the pattern. Matching runs through it once, with the set of all
positions in the name that the pattern read so far can end at: never more steps than the pattern has characters.
"""

from __future__ import annotations

import functools
import re
from typing import Literal, NamedTuple

MAX_LENGTH = 1000  # characters; a longer pattern is only searched for plain text
_TOKEN = re.compile(
    r"(?P<atom>\\.|\[[\w.-]+\]|[^\\()\[\]{}|^$*+?])(?P<repeat>[*+?]?)"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\)(?![*+?{]))|(?P<bar>\|)|(?P<anchor>[$^])|(?P<other>.)",
    re.S,
)


class Instruction(NamedTuple):
    """One step of matching: a kind of character and how often, or a bracket, a bar, an anchor."""

    kind: Literal["atom", "open", "close", "bar", "anchor"]
    text: str = ""
    repeat: str = ""  # "", "*", "+" or "?"


def matches(pattern: str, name: str) -> bool:
    """Whether a name begins with what the pattern describes: ``matches(r".*mlp\\.(gate|up)_proj", "a.mlp.up_proj")``"""
    program = compiled(pattern)
    if program is None:
        plain = _longest_plain_text(pattern)
        return len(plain) > 1 and plain in name
    return _run(program, name) != 0


@functools.lru_cache(maxsize=1000)
def compiled(pattern: str) -> tuple[Instruction, ...] | None:
    """The instructions of a pattern; None if it is too long or has anything that is not understood."""
    if len(pattern) > MAX_LENGTH:
        return None
    program, depth = [], 0
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup if token["atom"] is None else "atom"
        depth += (kind == "open") - (kind == "close")
        if kind == "other" or depth < 0 or (kind == "bar" and depth == 0):
            return None
        if kind == "atom" and re.match(r"\\[a-ce-vx-zA-Z0-9]", token["atom"]):
            return None  # a class of characters other than \d and \w
        program.append(Instruction(kind, token["atom"] or token[0], token["repeat"] or ""))  # type: ignore[arg-type]
    return tuple(program) if depth == 0 else None


@functools.lru_cache(maxsize=1000)
def _longest_plain_text(pattern: str) -> str:
    """The longest run of letters, digits and underscores in a pattern, without its classes such as ``\\d``."""
    return max(re.findall(r"\w+", re.sub(r"\\[a-zA-Z]", " ", pattern)), key=len, default="")


def _run(program: tuple[Instruction, ...], name: str) -> int:
    """All positions that a match can end at, as a set of bits: bit i is the position before ``name[i]``.

    In brackets, every alternative begins at the positions where the bracket was opened; at its end they are joined.
    """
    positions = 1
    brackets: list[tuple[int, int]] = []  # positions at the opening, and those at the ends of the alternatives so far
    for step in program:
        if step.kind == "atom":
            positions = advance(positions, _places(step.text, name), step.repeat)
        elif step.kind == "anchor":
            positions &= 1 if step.text == "^" else 1 << len(name)
        elif step.kind == "open":
            brackets.append((positions, 0))
        else:
            opening, ends = brackets.pop()
            if step.kind == "bar":
                brackets.append((opening, ends | positions))
                positions = opening
            else:
                positions |= ends
    return positions


def advance(positions: int, places: int, repeat: str) -> int:
    """Positions after one character that is at ``places``, repeated or not; all three are sets of bits.

    ``advance(0b0001, 0b0111, "+")  # 0b1110``: from position 0 over up to three such characters
    """
    once = (positions & places) << 1
    if repeat == "":
        return once
    if repeat == "?":
        return positions | once
    start = once if repeat == "+" else positions
    # Adding to a run of ones lets a carry ripple from each start to the bit behind the run; xor leaves what it passed.
    return (((start & places) + places) ^ places) | start


@functools.lru_cache(maxsize=20_000)
def _places(atom: str, name: str) -> int:
    """Where in a name a character of one kind is, as a set of bits: ``_places("a", "banana")  # 0b101010``"""
    return sum(1 << i for i, character in enumerate(name) if _fits(atom, character))


def _fits(atom: str, character: str) -> bool:
    if atom == ".":
        return True
    if atom == "\\d":
        return character.isdigit()
    if atom == "\\w":
        return character.isalnum() or character == "_"
    if atom.startswith("["):
        ranges = re.findall(r"(.)-(.)", atom[1:-1])
        single = re.sub(r".-.", "", atom[1:-1])
        return character in single or any(low <= character <= high for low, high in ranges)
    return character == atom[-1]
