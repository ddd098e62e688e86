"""Where names can stand: beside their dots, over no dot, line or other name. One answer for pictures and for the page.

frame = Frame((0.1, 1e4), (1e9, 1e15), 440, 380)
frame.at(10.0, 1e12)                                              # pixels from the lower left corner
room = Room(440, 380)
room.take((100, 200, 116, 216))                                   # a dot
room.place(Name("qkv_proj 12.0%", 108, 208, 8))                   # the box of its name: (119.0, 199.5, 217.0, 213.5)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .canvas import Point

FONT_SIZE = 11.0  # pixels
LINE_HEIGHT = 14.0
LEADER = 9.0  # from this distance of a dot's rim on, a thin line leads from the dot to its name
_CELL = 3.5  # pixels; names are placed on a grid
_ROWS = 4  # of cells that a name is high
_FARTHEST = 170.0  # pixels from a dot to its name
_NARROW, _WIDE = frozenset("fijlrtI.,:;/-| "), frozenset("mw%MW")  # letters, of 0.42 and 0.97 of the font's size

Rect = tuple[float, float, float, float]
Line = tuple[Point, Point]


class Frame(NamedTuple):
    """A field with logarithmic axes, and its size in pixels."""

    xs: tuple[float, float]
    ys: tuple[float, float]
    width: float
    height: float

    def at(self, x: float, y: float) -> Point:
        """Pixels from the lower left corner."""
        (x0, x1), (y0, y1) = self.xs, self.ys
        return math.log(x / x0) / math.log(x1 / x0) * self.width, math.log(y / y0) / math.log(y1 / y0) * self.height


class Name(NamedTuple):
    """A name and its dot, in pixels."""

    text: str
    x: float
    y: float
    radius: float


def label_width(text: str) -> float:
    """Pixels of a text at most: DejaVu Sans is as wide, what browsers take for it is narrower."""
    return FONT_SIZE * sum(0.42 if c in _NARROW else 0.97 if c in _WIDE else 0.65 for c in text)


def circle_box(x: float, y: float, radius: float) -> Rect:
    """The square around a dot, less its corners."""
    r = radius * 0.9 + 1
    return x - r, y - r, x + r, y + r


def nearest(x: float, y: float, box: Rect) -> Point:
    """The point of a box that a leader ends at."""
    return min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])


def crosses(line: Line, box: Rect) -> bool:
    """Whether a line touches a box: true unless x, y or the line's own direction separates the two."""
    (ax, ay), (bx, by) = line
    x0, y0, x1, y1 = box
    if (ax < x0 and bx < x0) or (ax > x1 and bx > x1) or (ay < y0 and by < y0) or (ay > y1 and by > y1):
        return False
    dx, dy = bx - ax, by - ay
    low, high, left, right = dx * (y0 - ay), dx * (y1 - ay), dy * (x0 - ax), dy * (x1 - ax)
    first = low > left
    return (low > right) != first or (high > left) != first or (high > right) != first


class Room:
    """What of a field is taken: a number for each row of cells, a bit for each cell.

    Names that were placed stay apart in a larger field, too, if the middles of names and dots move with it and their
    sizes are kept.
    """

    def __init__(self, width: float, height: float) -> None:
        self.columns, self.rows = int(width / _CELL), [0] * int(height / _CELL)
        self.names: list[Rect] = []

    def take(self, box: Rect) -> None:
        """No name may touch this box."""
        left, right = max(0, int(box[0] / _CELL)), min(self.columns, math.ceil(box[2] / _CELL))
        if right <= left:
            return
        bits = ((1 << (right - left)) - 1) << left
        for row in range(max(0, int(box[1] / _CELL)), min(len(self.rows), math.ceil(box[3] / _CELL))):
            self.rows[row] |= bits

    def take_line(self, line: Line, half: float = 2.0) -> None:
        """Nor this line of some width."""
        (ax, ay), (bx, by) = sorted(line, key=lambda point: point[1])
        if by - ay < 1e-9:
            self.take((min(ax, bx) - half, ay - half, max(ax, bx) + half, by + half))
            return
        slope, margin = (bx - ax) / (by - ay), half + _CELL
        for row in range(max(0, int((ay - half) / _CELL)), min(len(self.rows), int((by + half) / _CELL) + 1)):
            y = row * _CELL
            first = ax + (max(ay, y - half) - ay) * slope
            last = ax + (min(by, y + margin) - ay) * slope
            left, right = int((min(first, last) - half) / _CELL), int((max(first, last) + half) / _CELL) + 1
            left, right = max(0, left), min(self.columns, right)
            if left < right:
                self.rows[row] |= ((1 << (right - left)) - 1) << left

    def take_text(self, line: Line) -> None:
        """Nor a text along this line; leaders do not cross it."""
        (ax, ay), (bx, by) = line
        self.take_line(line, LINE_HEIGHT / 2)
        for part in (k / 8 for k in range(9)):
            x, y = ax + (bx - ax) * part, ay + (by - ay) * part
            self.names.append((x - 6, y - 6, x + 6, y + 6))

    def is_free(self, box: Rect) -> bool:
        """Whether nothing was taken here: ``room.is_free((0, 0, 10, 10))``"""
        left, right = int(box[0] / _CELL), math.ceil(box[2] / _CELL)
        bits = ((1 << max(0, right - left)) - 1) << max(0, left)
        rows = self.rows[max(0, int(box[1] / _CELL)) : math.ceil(box[3] / _CELL)]
        return left >= 0 and right <= self.columns and not any(row & bits for row in rows)

    def place(self, name: Name) -> Rect | None:
        """The box of a name, near its dot and not across others; none where there is no room. It is then taken."""
        for _, box in sorted(self._candidates(name)):
            leader = ((name.x, name.y), nearest(name.x, name.y, box))
            if any(crosses(leader, other) for other in self.names):
                continue
            self.names.append(box)
            self.take(box)
            if math.dist(*leader) >= name.radius + LEADER:
                self.take_line(leader, 1.0)
            return box
        return None

    def _candidates(self, name: Name) -> Iterator[tuple[float, Rect]]:
        """Of every row, the free places nearest to the dot on both sides, with their distance; nearer rows first."""
        rows, wide = self.rows, math.ceil(label_width(name.text) / _CELL)
        middle, best = round(name.y / _CELL - _ROWS / 2), _FARTHEST
        wanted, full = max(0, round(name.x / _CELL - wide / 2)), (1 << self.columns) - 1
        for k in range(2 * int(_FARTHEST / _CELL)):
            away = (k + 1) // 2 * _CELL
            if away - name.radius - LINE_HEIGHT > best + LEADER:
                return
            row = middle + (k + 1) // 2 * (1 if k % 2 else -1)
            if not 0 <= row <= len(rows) - _ROWS:
                continue
            free, run = full & ~(rows[row] | rows[row + 1] | rows[row + 2] | rows[row + 3]), 1
            while run < wide and free:  # bits where a free run of that many cells begins
                free &= free >> min(run, wide - run)
                run *= 2
            after, before = free >> wanted, free & ((1 << wanted) - 1)
            starts = [(after & -after).bit_length() - 1 + wanted] if after else []
            starts += [before.bit_length() - 1] if before else []
            for start in starts:
                x, y = start * _CELL, row * _CELL
                box = (x, y, x + wide * _CELL, y + LINE_HEIGHT)
                far = math.dist((name.x, name.y), nearest(name.x, name.y, box)) - name.radius
                best = min(best, far)
                yield far + 0.05 * away, box


def label_along(text: str, line: Line, dots: Iterable[Rect]) -> tuple[float, Line]:
    """Where a text begins that is written above a line, as a part of its length; and the middle line of the text.

    Of several places, the one that is farthest from any dot.
    """
    (ax, ay), (bx, by) = line
    length = math.dist(*line) or 1.0
    dx, dy = (bx - ax) / length, (by - ay) / length
    long = label_width(text)
    middles = []  # how far along the line, how far above it, and a radius
    for x0, y0, x1, y1 in dots:
        x, y = (x0 + x1) / 2 - ax, (y0 + y1) / 2 - ay
        middles.append((x * dx + y * dy, y * dx - x * dy, (x1 - x0) / 2))

    def room(part: float) -> float:
        low, high = length * part, length * part + long
        gaps = (math.hypot(max(low - x, x - high, 0.0), y - 9) - radius for x, y, radius in middles)
        return min(gaps, default=0.0)

    places = [part / 10 for part in range(1, 10) if length * part / 10 + long < length * 0.97]
    part = max(places, key=room) if places else 0.0
    x, y = ax + dx * length * part - dy * 9, ay + dy * length * part + dx * 9
    return part, ((x, y), (x + dx * long, y + dy * long))
