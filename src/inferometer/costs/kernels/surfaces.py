"""Kernel ratios over shapes: a surface with straight lines between its nodes, and each kind's coordinates on it.

A ratio is seconds over a plain base, ``start + ‖compute, memory‖₃`` at the peaks of the device. It is flat where the
roofline is right and changes slowly elsewhere, so straight lines between few nodes follow it, and it carries over to
another device of the kind. Coordinates and values are logarithms (base 2); beyond its last node a surface stays as it
is there. Floats or arrays; NumPy is loaded only where there are arrays.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...base.symbols import Value, ceil_of, log2, maximum_of, minimum_of, scalar
from .source import Terms, p_norm

Dims = Mapping[str, Value]
TILE, WIDE_TILE = 128, 80  # cached positions that decode kernels take at once: FlashAttention 3, hopper/tile_size.h
WIDE_HEAD = 256  # the head size with the smaller tile (64 where a layer has a window, which is taken as the same)


class Surface(msgspec.Struct, frozen=True):
    """``Surface([[0, 1], [0, 4]], [1, 2, 3, 4]).at(0.5, 0.0)  # 2.0``: axes of rising nodes, values row by row."""

    axes: list[list[float]]
    values: list[float]

    def at(self, *coords: Value) -> Value:
        """The value at some coordinates, one per axis; axes with a single number are contracted first, then arrays."""
        if all(map(scalar, coords)):
            return _interpolate_point(self.axes, self.values, coords)
        values: Any = self.values
        sizes = [len(axis) for axis in self.axes]
        left: list[int] = []
        for index in range(len(sizes) - 1, -1, -1):  # last axis first: its nodes lie side by side in memory
            if sizes[index] == 1 or scalar(coords[index]):
                at = (0, 0.0) if sizes[index] == 1 else _bracket(self.axes[index], float(coords[index]))
                values = _contract_axis(values, sizes, index, *at)
                sizes[index] = 1
            else:
                left.insert(0, index)
        if not left:
            return float(values[0])
        return _interpolate_arrays([self.axes[i] for i in left], values, [coords[i] for i in left])


def _bracket(axis: Sequence[float], x: float) -> tuple[int, float]:
    """The node before a coordinate, and how far it is to the next one."""
    if x <= axis[0] or len(axis) == 1:
        return 0, 0.0
    if x >= axis[-1]:
        return len(axis) - 2, 1.0
    low = bisect_right(axis, x) - 1
    return low, (x - axis[low]) / (axis[low + 1] - axis[low])


def _interpolate_point(axes: list[list[float]], values: Sequence[float], coords: Sequence[Value]) -> float:
    """Multilinear interpolation at one point: the 2ⁿ corners around it, each weighted by how close it is."""
    if len(axes) == 1:
        low, share = _bracket(axes[0], float(coords[0]))
        return float(values[low] if share == 0.0 else values[low] * (1 - share) + values[low + 1] * share)
    corners = [(0, 1.0)]
    for axis, x in zip(axes, coords, strict=True):
        low, share = _bracket(axis, float(x))
        nodes = len(axis)
        if share == 0.0:
            corners = [(at * nodes + low, weight) for at, weight in corners]
        else:
            corners = [
                pair
                for at, weight in corners
                for pair in ((at * nodes + low, weight * (1 - share)), (at * nodes + low + 1, weight * share))
            ]
    return float(sum(values[at] * weight for at, weight in corners))


def _contract_axis(values: Sequence[float], sizes: list[int], index: int, low: int, share: float) -> list[float]:
    """The values, row by row, with one axis contracted to a point between two of its nodes."""
    inner = math.prod(sizes[index + 1 :])
    outer, nodes = math.prod(sizes[:index]), sizes[index]
    contracted: list[float] = []
    for o in range(outer):
        start = (o * nodes + low) * inner
        if nodes == 1 or share == 0.0:
            contracted += values[start : start + inner]
        else:
            contracted += [values[i] + (values[i + inner] - values[i]) * share for i in range(start, start + inner)]
    return contracted


def _interpolate_arrays(axes: list[list[float]], values: Sequence[float], coords: list[Value]) -> Value:
    """Multilinear interpolation at many points; ``coords`` are arrays that broadcast, one per axis."""
    import numpy as np

    if len(axes) == 1:
        return np.interp(coords[0], axes[0], values)
    table = np.asarray(values).reshape([len(axis) for axis in axes])
    lows, shares = [], []
    for axis, x in zip(axes, np.broadcast_arrays(*coords), strict=True):
        nodes = np.asarray(axis)
        inside = np.clip(x, nodes[0], nodes[-1])
        low = np.clip(np.searchsorted(nodes, inside, side="right") - 1, 0, len(nodes) - 2)
        lows.append(low)
        shares.append((inside - nodes[low]) / (nodes[low + 1] - nodes[low]))
    total: Any = 0.0
    for corner in range(1 << len(axes)):
        weight: Any = 1.0
        index = []
        for number, (low, share) in enumerate(zip(lows, shares, strict=True)):
            upper = corner >> number & 1
            weight = weight * (share if upper else 1 - share)
            index.append(low + upper)
        total = total + weight * table[tuple(index)]
    return total


class Shape(NamedTuple):
    """The coordinates of one kind of kernel: ``SHAPES["linear"].coords({"m": 8, "n": 4096, "k": 1024})  # (3, 12, 10)``

    Some axes vary from step to step (rows, sequences, context), the others are fixed by the model (weights, heads).
    """

    start: float  # s that even the smallest call takes, roughly
    size_names: tuple[str, ...]  # sizes of the weight or the heads: measured curves are keyed by them
    step_axes: Callable[[Dims], tuple[Value, ...]]  # what varies from step to step, in log2
    fixed_axes: Callable[[Dims], tuple[Value, ...]]  # the fixed sizes, in log2: a surface has them as further axes
    padding: Callable[[Dims], Value] = lambda d: 1.0  # how much more a call does than it needs to, working in tiles
    product: bool = False  # a matrix product: above its roofline are waves of tiles, not work of another kind
    tile: Callable[[Dims], Value] | None = None  # positions of the cache that a call takes at once

    def coords(self, dims: Dims, octaves: float = 0.0) -> tuple[Value, ...]:
        """Coordinates on a surface, of a call that is larger by some octaves of bytes."""
        coords = [*self.step_axes(dims), *self.fixed_axes(dims)]
        if octaves:
            axis = int(self.product)  # outputs of a product, sequences of attention
            coords[axis] = coords[axis] + octaves
        return tuple(coords)

    def fixed_coords(self, sizes: tuple[float, ...]) -> tuple[Value, ...]:
        """The fixed coordinates of exact sizes: ``SHAPES["linear"].fixed_coords((4096.0, 1024.0))  # (12.0, 10.0)``"""
        return self.fixed_axes(dict(zip(self.size_names, sizes, strict=True)))

    def exact_sizes(self, dims: Dims) -> tuple[Value, ...]:
        """The sizes that a measured curve is keyed by."""
        return tuple(dims[name] for name in self.size_names)

    def as_timed(self, dims: Dims, axes: Sequence[Sequence[float]]) -> Dims:
        """The sizes of a call as a table knows them: a context below its first one is a whole tile of the cache.

        A program loads and multiplies a tile however few positions are in it. On GPUs of five kinds decode attention
        takes nearly as long at contexts of 2 to 64 as at 128.
        """
        if self.tile is None or axes[1][0] <= 1:
            return dims
        return {**dims, "least_context": minimum_of(2.0 ** axes[1][0], self.tile(dims))}

    def base(self, terms: Terms, dims: Dims) -> Value:
        """The seconds that ratios are relative to."""
        return self.start + p_norm(terms.compute, terms.memory, 3) * self.padding(dims)


def _log(value: Value) -> Value:
    if value.__class__ is float:
        return math.log2(value if value > 1e-9 else 1e-9)
    return log2(maximum_of(value, 1e-9))


def _within(value: Value) -> Value:
    """A share: from 0 to 1."""
    return minimum_of(maximum_of(value, 0.0), 1.0)


def _tiled_context(d: Dims) -> Value:
    """Positions that a sequence's decoding walks over, in whole tiles of the cache.

    A batch of one length crosses a tile's edge all at once; in a mixed one the last tile is half full on average.
    Within one tile it is latency that counts, which tables of short contexts show; others begin with the whole tile.
    """
    mean = d["kv"] / maximum_of(d["seqs"], 1e-9)
    tile = _tile(d)
    whole = mean + (tile * ceil_of(mean / tile) - mean) * (mean > tile)
    mixed = mean + minimum_of(mean, tile) / 2
    tiled = d["uniform_lengths"] * whole + (1 - d["uniform_lengths"]) * mixed
    return maximum_of(tiled, d["least_context"]) if "least_context" in d else tiled


def _tile(d: Dims) -> Value:
    return TILE + (WIDE_TILE - TILE) * (d["qk_dim"] == WIDE_HEAD)


def _tile_padding(d: Dims) -> Value:
    """How much more than its positions a call walks over; queries and outputs, as many positions' bytes, stay."""
    mean = maximum_of(d["kv"] / maximum_of(d["seqs"], 1e-9), 1e-9)
    outputs = 2 * d["heads"] / d["kv_heads"] * (mean < d["least_context"]) if "least_context" in d else 0.0
    return (_tiled_context(d) + outputs) / (mean + outputs)


def _equivalent_prompt(d: Dims) -> Value:
    """Length of the plain prompt in which a query sees as many keys on average as here: n queries see n/2 each."""
    return 2 * d["pairs"] / maximum_of(d["tokens"], 1e-9)


SHAPES: dict[str, Shape] = {
    "linear": Shape(
        2e-6,
        ("n", "k"),
        lambda d: (_log(d["m"]),),
        lambda d: (_log(d["n"]), _log(d["k"])),
        product=True,
    ),
    "decode_attention": Shape(
        5e-6,
        ("heads", "kv_heads", "qk_dim"),
        lambda d: (_log(d["seqs"] * d["kv_heads"]), _log(_tiled_context(d))),
        lambda d: (_log(d["heads"] / d["kv_heads"]),),
        _tile_padding,
        tile=_tile,
    ),
    "prefill_attention": Shape(
        5e-6,
        ("heads", "kv_heads", "qk_dim"),
        lambda d: (_log(d["tokens"] * d["heads"]), _log(_equivalent_prompt(d))),
        lambda d: (_log(d["heads"]),),
    ),
    "moe": Shape(
        1e-5,
        ("hidden", "inner", "experts", "top_k"),
        lambda d: (_log(d["rows"] / d["experts"]),),
        lambda d: (_log(d["hidden"] * d["inner"]), _log(d["experts"]), _log(d["top_k"])),
        product=True,
    ),
    "state_update": Shape(  # a program for some rows of a head's state: sequences and heads count alike
        2e-6,
        ("value_dim", "key_dim"),
        lambda d: (_log(d["seqs"] * d["heads"]),),
        lambda d: (_log(d["value_dim"]), _log(d["key_dim"])),
    ),
    "chunk_scan": Shape(
        1e-5,
        ("value_dim", "key_dim", "chunk"),
        lambda d: (_log(d["m"] * d["heads"]), _log(d["seqs"])),
        lambda d: (_log(d["value_dim"]), _log(d["key_dim"]), _log(d["chunk"])),
    ),
    "sampler": Shape(5e-6, ("n",), lambda d: (_log(d["m"]),), lambda d: (_log(d["n"]),)),
}


class RowTiles(msgspec.Struct, frozen=True):
    """How a product's kernel takes its rows: in whole tiles, the last of which is slow where it is not full.

    ``tiles.worked(dims, terms)`` is the call as the kernel works on it, and seconds on top. Data of a kernel profile,
    which has the figures and says where they come from.
    """

    above: float  # rows up to which other kernels are chosen
    rows: float  # of a tile, which two SMs share
    outputs: float  # of a tile
    at_once: float  # tiles that the GPU works on at the same time: a wave
    filled: list[float]  # shares of a tile's rows that are there, rising
    extra: list[float]  # what the last tiles take longer then, in times that `rows` rows need at the peak
    inputs: tuple[float, float]  # from the first on products take longer at all, from the second on by all of it
    source: str = ""
    mean: bool = False  # of a kernel that only resembles this one: tiles are always as full as in the mean

    def worked(self, dims: Dims, terms: Terms) -> tuple[Dims, Terms, Value]:
        """Rows as whole tiles; computing with half of what the last wave leaves free; seconds that slow tiles add.

        A number of rows that is not whole is a mean over steps: tiles and waves are then half empty in the mean.
        """
        m = maximum_of(dims["m"], 1e-9)
        row = ceil_of(m - 1e-3)
        tiled, mean = (m > self.above) * 1.0, maximum_of((abs(row - m) > 1e-3) * 1.0, float(self.mean))
        whole = self.rows * ceil_of(row / self.rows) * (1 - mean) + (m + self.rows / 2) * mean
        waves = maximum_of(whole / self.rows * ceil_of(dims["n"] / self.outputs) / self.at_once, 1e-9)
        last = ceil_of(waves) * (1 - mean) + (waves + 0.5) * mean
        filled = Surface([self.filled], self.extra).at(1 - ceil_of(row / self.rows) + row / self.rows)
        slow = filled * (1 - mean) + self._mean_extra() * mean
        slow = slow * minimum_of(whole / self.rows / 2, 1.0)  # half of it where there is one row of tiles
        slow = slow * _within(2.5 * waves - 1)  # tiles of a GPU that is half empty do not get in each other's way
        slow = slow * _within(_log(dims["k"] / self.inputs[0]) / log2(self.inputs[1] / self.inputs[0]))
        computed = terms.compute * (1 + tiled * (whole / m * (last / waves) ** 0.5 - 1))
        rows = dims["m"] + tiled * (whole - dims["m"])
        return {**dims, "m": rows}, terms._replace(compute=computed), tiled * slow * terms.compute * self.rows / m

    def _mean_extra(self) -> float:
        """The mean of what last tiles take longer, over all shares."""
        steps = zip(self.filled, self.filled[1:], self.extra, self.extra[1:], strict=False)
        return sum((b - a) * (x + y) / 2 for a, b, x, y in steps)


class SplitTiles(msgspec.Struct, frozen=True):
    """How a decode kernel spreads contexts over the SMs: in pieces of whole blocks, as many as fill the GPU once.

    ``tiles.factor(dims)`` is what a call takes over what a table says that has powers of two alone. Data of a
    kernel profile, which has the figures and says where they come from.

    A piece is a KV head of a sequence, or part of one; every SM works on one piece at a time. Pieces are no longer than
    leaves them on one wave of SMs (and a tenth to spare), but every sequence is cut by itself. So six sequences of
    eight KV heads may be 144 pieces on 132 SMs, and take nearly twice as long as four.
    """

    block: float  # positions that a piece consists of
    start: float  # s of a piece
    each: float  # s of a block
    fixed: float  # s of a call, with that of joining the pieces
    at_once: float  # pieces that the GPU works on at the same time: its SMs
    read: float  # s to read a byte of the cache
    width: float = 2.0  # bytes of a number in it
    spare: float = 1.1
    most: float = 32.0  # pieces of a sequence
    source: str = ""

    def factor(self, d: Dims) -> Value:
        """Seconds of these sequences over those between calls whose sequences and contexts are powers of two."""
        seqs, heads, tile = maximum_of(d["seqs"], 1.0), d["kv_heads"], _tile(d)
        mean = maximum_of(d["kv"] / seqs, tile / 2)
        read = self.read * self.width * heads * (d["qk_dim"] + d["v_dim"])  # s of a position
        even = self._even(seqs, mean, heads, read)
        mixed = self._call(self._mixed(seqs, mean, heads), seqs * mean * read)
        n, m = _log(seqs), maximum_of(_log(_tiled_context(d) / tile), 0.0)
        n_low, m_low = n - n % 1, m - m % 1
        table: Value = 0.0
        for right, n_share in ((0.0, 1 - n % 1), (1.0, n % 1)):
            for above, m_share in ((0.0, 1 - m % 1), (1.0, m % 1)):
                count, reach = 2 ** (n_low + right), tile * 2 ** (m_low + above)
                table = table + n_share * m_share * log2(self._even(count, reach, heads, read))
        return (d["uniform_lengths"] * even + (1 - d["uniform_lengths"]) * mixed) / 2**table

    def _call(self, pieces: Value, read: Value) -> Value:
        """Seconds of a call from those of its pieces and those of reading the cache at full bandwidth."""
        return self.fixed + p_norm(pieces, read, 6)

    def _share(self, blocks: Value, heads: Value) -> Value:
        """Blocks of a piece, if all sequences' blocks of a KV head were spread over the SMs and none to spare."""
        return blocks * self.spare * heads / self.at_once

    def _even(self, seqs: Value, context: Value, heads: Value, read: Value) -> Value:
        """Seconds of sequences of one length: as many waves of pieces as they need, of whole blocks."""
        blocks = ceil_of(context / self.block)
        longest = maximum_of(ceil_of(self._share(seqs * blocks, heads)), 1.0)
        pieces = minimum_of(ceil_of(blocks / longest), self.most)
        waves = ceil_of(seqs * heads * pieces / self.at_once)
        seconds = waves * (self.start + self.each * ceil_of(blocks / pieces))
        return self._call(seconds, seqs * blocks * self.block * read)

    def _mixed(self, seqs: Value, mean: Value, heads: Value) -> Value:
        """The same of sequences as different as chats are, in the mean over such batches (lognormal, sigma 0.6).

        Where there are more pieces than SMs, SMs take the next piece when they are free: the work of all, and most of
        one piece more, since the last ones to begin are not the shortest.
        """
        blocks = mean / self.block + 0.5  # the last block is half full
        longest = maximum_of(self._share(seqs * blocks, heads), blocks / self.most) + 0.5
        cut = maximum_of(blocks / longest + MORE_PIECES, 1.0)
        pieces = seqs * heads * cut
        one = self.start + self.each * maximum_of(minimum_of(longest, LONGEST * blocks), 1.0)
        work = (pieces * self.start + seqs * heads * blocks * self.each) / self.at_once
        late = LAST + LAST_OF_MANY * maximum_of(_log(seqs) - 4.5, 0.0)
        several = work + late * (self.start + self.each * blocks / cut)
        share = _within((pieces / self.at_once - 1) / EDGE + 0.5)
        return one * (1 - share) + maximum_of(one, several) * share


# Fitted to a simulation of the scheduler, piece by piece, over 2 to 128 sequences of 300 to 8,000 positions and 4 to 16
# KV heads: within 3% in the mean. `tests/costs/test_split_tiles.py` has that simulation.
MORE_PIECES = 0.4  # pieces of a sequence beyond its share, since every one is cut by itself
LAST, LAST_OF_MANY = 0.7, 0.1  # of a mean piece that the last SM works on alone; more where many are drawn from
LONGEST = 1.4  # of the mean context, where a piece is a whole sequence
EDGE = 0.1  # of a wave, within which batches of the same mean need one or two


def surface_seconds(
    surface: Surface,
    shape: Shape,
    d: Dims,
    terms: Terms,
    lighter: float = 0.0,
    tiles: RowTiles | None = None,
) -> Value:
    """Seconds of a call by a surface of the device whose roofline ``terms`` has.

    Bytes that are ``lighter`` by some octaves than those of the table's format fill the time of a call that is smaller
    by as many: 4-bit weights of 60 MB are as far from their roofline as 16-bit ones of 60 MB.
    """
    d, terms, added = tiles.worked(d, terms) if tiles is not None else (d, terms, 0.0)
    d = shape.as_timed(d, surface.axes)
    return shape.base(terms, d) * 2.0 ** surface.at(*shape.coords(d, -lighter)) + added


def head_table_key(label: str, tables: Mapping[str, object], cache: str) -> str:
    """The table for a head's sizes and a cache format, the nearest there is: ``head_table_key("96", …)  # '128'``

    Latent attention (keys and values of different sizes) runs other kernels and has tables of its own.
    """
    fp8 = cache == "fp8"
    similar = [key for key in tables if key.endswith("-fp8") == fp8 and ("x" in key) == ("x" in label)]
    if not similar:
        return head_table_key(label, tables, "") if fp8 and tables else ""
    best = min(similar, key=lambda key: (abs(_octaves(key, label)), key))
    return best if abs(_octaves(best, label)) <= 0.6 else ""


def _octaves(a: str, b: str) -> float:
    """How far apart two heads are in size, keys and values together."""
    sizes = [[float(x) for x in key.removesuffix("-fp8").split("x")] for key in (a, b)]
    return float(log2((sizes[0][0] + sizes[0][-1]) / (sizes[1][0] + sizes[1][-1])))
