"""Text for people: pieces with styles, wrapped at word borders, likenesses in ASCII.

Paragraph("  ✗ too slow", style="red").lines(40)
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from html import escape
from typing import NamedTuple

from ..plots.palette import LIGHT

ASCII = {
    " · ": ", ",
    "×": "x",
    "·": "*",
    "–": "-",
    "−": "-",
    "—": "-",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "±": "+-",
    "µ": "u",
    "…": "...",
    "∞": "inf",
    "▶": ">",
    "✗": "x",
    "✓": "ok",
    "Σ": "sum ",
    "█": "#",
    "\u00a0": " ",
}
# The terminal's colours on a page. Mixed with the colour of the text around it, each can be read on light and on dark.
COLORS = {
    "red": LIGHT["vermillion"],
    "green": LIGHT["green"],
    "yellow": LIGHT["orange"],
    "blue": LIGHT["blue"],
    "magenta": LIGHT["purple"],
    "cyan": LIGHT["sky"],
}
_CSS = {"bold": "font-weight:600", "dim": "opacity:.7", "italic": "font-style:italic"}
_SHADES = re.compile("[█▓▒░▚▞]")  # marks of a legend: on a page, colours alone tell amounts apart
# Spaces at which no line ends: between a figure and its unit, beside a sign, before a dot or an arrow, after -tp.
_TIED = re.compile(
    r"(?<=\d) (?=(?:[kMGTP]?(?:B|FLOP)(?:/s)?|[mµn]?s|[kMBGT]|GPUs?|GPU-hours|columns|in|out|tokens?(?:/s)?"
    r"|requests?(?:/s)?)(?:\W|$))|(?<=[×≤≥=]) | (?=[×≤≥=·→])|(?<=\s-\w) |(?<=\s-\w\w) "
)


class Cell(NamedTuple):
    """A text with a style; ``ascii`` stands for it where only ASCII may, ``Cell("●", ascii="measured")``."""

    text: str
    style: str = ""
    ascii: str | None = None
    bar: float = 0.0  # a share of 1, drawn behind the text on a page

    @property
    def plain(self) -> str:
        """The text in ASCII."""
        return to_ascii(self.text if self.ascii is None else self.ascii)


Spans = list[Cell]  # a line of a terminal


def css(style: str) -> str:
    """A style as CSS: ``css("bold dim")  # 'font-weight:600;opacity:.7'``"""
    colors = [f"color:color-mix(in srgb,{COLORS[name]} 70%,currentColor)" for name in style.split() if name in COLORS]
    return ";".join([*(_CSS[name] for name in style.split() if name in _CSS), *colors])


def span(cell: Cell) -> str:
    """A piece of text as HTML: ``span(Cell("<b>", "bold"))  # '<span style="font-weight:600">&lt;b&gt;</span>'``"""
    style = css(cell.style)
    return f'<span style="{style}">{escape(cell.text)}</span>' if style and cell.text else escape(cell.text)


Draw = Callable[[int], Spans]  # a bar or a curve, as many columns wide as it is given


def to_ascii(text: str) -> str:
    """``to_ascii("16 × h200 · 3 µs")  # '16 x h200, 3 us'``; what has no likeness is escaped, not lost."""
    if text.isascii():
        return text
    for sign, likeness in ASCII.items():
        text = text.replace(sign, likeness)
    bare = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return bare.encode("ascii", "backslashreplace").decode()


def width_of(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def wrapped(text: str, width: int | None, hanging: int = 0) -> list[tuple[int, int]]:
    """Where lines of a text begin and end: at word borders, a figure with its unit; a long word stays whole.

    ``wrapped("held at 12 ms", 8)  # [(0, 7), (8, 13)]``
    """
    if width is None or width_of(text) <= width:
        return [(0, len(text))]
    tied = {place.start() for place in _TIED.finditer(text)}
    indent = len(text) - len(text.lstrip())
    borders = [place.start() for place in re.finditer(" ", text) if place.start() not in tied]
    lines: list[tuple[int, int]] = []
    start = end = 0
    for border in [*(b for b in borders if b >= indent), len(text)]:
        room = width - (hanging if lines else 0)
        if end > start and width_of(text[start:border]) > room:
            lines.append((start, end))
            start = end + 1
        end = border
    return [*lines, (start, end)]


def folded(text: str, width: int) -> list[str]:
    """``folded("as it is now", 8)  # ['as it is', 'now']``; a name that is too long is broken as `name_pieces` says."""
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        room = width - len(indent)
        pieces = (_split_name(word, room) if width_of(word) > room else word for word in line.strip().split(" "))
        spaced = " ".join(pieces)
        lines += [indent + spaced[a:b].rstrip() for a, b in wrapped(spaced, room)]
    return lines


def name_pieces(text: str) -> list[str]:
    """Where a name or a formula that is too long may go on: ``name_pieces("2·head_dim")  # ['2·', 'head_', 'dim']``"""
    return re.findall(r"[^\s_·/]*[_·/]+|[^\s_·/]+", text)


def _split_name(word: str, width: int) -> str:
    """``_split_name("post_attention_layernorm", 16)  # 'post_attention_ layernorm'``"""
    lines = [""]
    for piece in name_pieces(word):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return " ".join(lines)


class Paragraph:
    """Text that goes on below its own beginning where a screen is narrow: ``Paragraph("  ✗ too slow", "red")``

    Several pieces, each with its style: ``Paragraph("memory ", Cell("16 GB", "bold"))``
    """

    def __init__(self, *pieces: str | Cell, style: str = "") -> None:
        self.pieces = [Cell(p, style) if isinstance(p, str) else p for p in pieces]

    @property
    def text(self) -> str:
        """All of it, without styles."""
        return "".join(piece.text for piece in self.pieces)

    def lines(self, width: int | None) -> Iterator[Spans]:
        """The lines of a screen of that width."""
        text = self.text
        head = re.match(r" *(?:[✗!▶] )?", text)
        hanging = min(head.end() if head else 0, 12)
        for number, (start, end) in enumerate(wrapped(text, width, hanging)):
            yield [Cell(" " * hanging if number else ""), *self._slice(start, end)]

    def _slice(self, start: int, end: int) -> Iterator[Cell]:
        at = 0
        for piece in self.pieces:
            part = piece.text[max(0, start - at) : max(0, end - at)]
            at += len(piece.text)
            if part:
                yield Cell(part, piece.style)

    def plain(self) -> str:
        """One line of ASCII."""
        return "".join(piece.plain for piece in self.pieces).rstrip() + "\n"

    def markdown(self) -> str:
        """A paragraph: bold lines stay bold, indented ones are points of a list."""
        text = re.sub(r"^([#>+-] |\d+(?=\.\s))", r"\\\1", escaped(self.text.strip()))
        if not text:
            return ""
        if self.text.startswith("  "):
            return f"- {text}\n"
        return f"**{text}**\n" if self.pieces and "bold" in self.pieces[0].style else f"{text}\n"

    def html(self) -> str:
        """A block of a page, as far in as its first word is."""
        text = self.text
        if not text.strip():
            return ""
        indent = min(len(text) - len(text.lstrip()), 4)
        inner = "".join(map(_swatch, self.pieces)).strip().replace("  ", "\u2003")
        return f'<div style="margin:2px 0 2px {indent / 2:g}em">{inner}</div>\n'


def _swatch(piece: Cell) -> str:
    """A piece of a paragraph as HTML; a mark of a legend in its very colour."""
    if not _SHADES.match(piece.text):
        return span(piece)
    return f'<span style="color:{COLORS.get(piece.style, "inherit")}">■</span>\u00a0'


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in a cell of a table, too."""
    return re.sub(r"([\\|*`<])", r"\\\1", text.replace("\n", " "))
