"""More work never takes less time: what that asks of a surface's nodes, and curves that were brought to it.

A surface holds log2(seconds / base). Seconds rise along an axis where the ratio falls no faster than the base rises, so
each pair of neighbouring nodes has a least difference, which `fit_surface.fit` keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from inferometer.costs.kernels.kernel_rows import row_terms
from inferometer.costs.kernels.source import p_norm
from inferometer.costs.kernels.surfaces import SHAPES
from inferometer.specs.structs import Hardware

Array = np.ndarray
Axes = Sequence[Sequence[float]]
RISING = {  # axes along which work grows while all else stays: the others trade one size for another
    "linear": (0, 1, 2),  # rows, outputs, inputs
    "decode_attention": (0, 1),  # sequences, context
    "prefill_attention": (0, 1),  # tokens, positions that each sees
    "moe": (0, 1),  # tokens of an expert, its weights
    "state_update": (0,),  # sequences times heads
    "chunk_scan": (0,),  # tokens times heads
    "sampler": (0, 1),  # rows, vocabulary
}
TOLERANCE = 0.015  # octaves, 1%: values are kept to a hundredth of an octave, and a cell between nodes bends a little
PARTS = 2  # pieces of an interval between two nodes in which the slope of the base is taken


class Least(NamedTuple):
    """``nodes[high] - nodes[low] >= least`` for flat indices of nodes."""

    low: Array
    high: Array
    least: Array


def base_at(kind: str, table_key: str, device: Hardware, coords: Sequence[Array]) -> Array:
    """Seconds that ratios are relative to, at coordinates of a surface."""
    size = [2.0 ** np.asarray(x, float) for x in coords]
    sizes: dict[str, Any]
    if kind == "linear":
        sizes = dict(zip("mnk", size, strict=True))
    elif kind == "sampler":
        sizes = dict(zip("mn", size, strict=True))
    elif kind == "moe":
        hidden = np.sqrt(2 * size[1])
        top_k = np.minimum(size[3], size[2])
        sizes = {"tokens": size[0] * size[2] / top_k, "hidden": hidden, "inner": size[1] / hidden}
        sizes |= {"experts": size[2], "top_k": top_k}
    elif kind in ("state_update", "chunk_scan"):
        names = (
            ("seqs", "value_dim", "key_dim")
            if kind == "state_update"
            else ("m", "seqs", "value_dim", "key_dim", "chunk")
        )
        sizes = {**dict(zip(names, size, strict=True)), "heads": 1, "groups": 1}
    else:
        qk, _, v = table_key.removesuffix("-fp8").partition("x")
        sizes = {"head_dim": float(qk), "v_dim": float(v or qk), "kv_dtype": "fp8" if "-fp8" in table_key else "bf16"}
        if kind == "decode_attention":
            sizes |= {"seqs": size[0], "context": size[1], "heads": size[2], "kv_heads": np.ones_like(size[0])}
        else:
            tokens = size[0] / size[2]
            new = np.minimum(size[1], tokens)
            sizes |= {"seqs": tokens / new, "new": new, "context": (size[1] + new) / 2, "heads": size[2]}
            sizes["kv_heads"] = size[2] if v else np.maximum(size[2] / 4, 1)
    dtype = "bf16" if kind.endswith("_attention") else table_key
    ways = ({}, {"even": True}) if kind == "moe" else ({},)
    terms = [row.terms for row in (row_terms(kind, dtype, {**sizes, **way}, device) for way in ways) if row is not None]
    made = [SHAPES[kind].start + p_norm(one.compute, one.memory, 3) for one in terms]
    # a rank may have less than one token, but then no random choice of experts
    return np.where(sizes["tokens"] >= 1, *made) if kind == "moe" else made[0]


def constraints(
    kind: str,
    table_key: str,
    device: Hardware,
    axes: Axes,
    fixed: Sequence[float] = (),
    *,
    parts: int = PARTS,
    falling: Sequence[int] = (),
) -> Least:
    """The least differences of all neighbours along the rising axes, but for ``falling`` ones, along which other
    kernels were seen to be faster; ``fixed`` are coordinates after those axes.
    """
    sizes = [len(axis) for axis in axes]
    flat = np.arange(int(np.prod(sizes))).reshape(sizes)
    low, high, least = [], [], []
    for along in set(RISING[kind]) - set(falling):
        if along >= len(axes):
            break
        nodes = np.asarray(axes[along], float)
        fine = np.interp(np.arange((len(nodes) - 1) * parts + 1) / parts, np.arange(len(nodes)), nodes)
        grid = np.meshgrid(*[fine if i == along else axis for i, axis in enumerate(axes)], indexing="ij")
        coords = [*grid, *(np.full(grid[0].shape, x) for x in fixed)]
        rise = np.moveaxis(np.diff(np.log2(base_at(kind, table_key, device, coords)), axis=along), along, 0)
        slowest = rise.reshape(len(nodes) - 1, parts, *rise.shape[1:]).min(axis=1) * parts
        line = np.moveaxis(flat, along, 0)
        low.append(line[:-1].ravel())
        high.append(line[1:].ravel())
        least.append(-slowest.ravel())
    return Least(*map(np.concatenate, (low, high, least)))


def raised(nodes: Array, floors: Least) -> Array:
    """The least surface above the given one that keeps all differences: for the little that a fit leaves."""
    values = nodes.copy()
    for _ in range(len(nodes)):
        before = values.copy()
        np.maximum.at(values, floors.high, values[floors.low] + floors.least)
        if np.array_equal(before, values):
            break
    return values


def worst_fall(nodes: Array, floors: Least) -> float:
    """By how many octaves seconds fall at most from one node to the next."""
    return float(np.max(floors.least - (nodes[floors.high] - nodes[floors.low]), initial=0.0))
