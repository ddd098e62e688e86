"""Rows of gpt-oss' experts in Marlin's kernels on Hopper, where no public table has them.

rows = carried("h200", own)     # with the table's own rows of that kernel, which are of a model of 896 experts

An L40S' table has gpt-oss in Marlin and Kimi-K2 in Marlin (integers of 4 bits), Hopper's tables have Kimi-K2 alone. How
much slower than its roofline a call is, is taken from the L40S and moved by what the same Kimi-K2 call, with as many
rows for each expert, is better or worse on Hopper. Weights that Marlin pads (2,880 to 3,072) are padded in both.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from kernel_tables import SizedRows, TableRows, _rows, mixtures

from inferometer.costs.kernels.surfaces import SHAPES

FORMAT, FROM, BESIDE = "mxfp4-marlin", "l40s", "w4a16"


class Slowness(NamedTuple):
    """Of calls: log2 of the rows for each expert, of an expert's weights, and of seconds over the shape's base."""

    rows: np.ndarray
    weights: np.ndarray
    over_base: np.ndarray


def carried(device: str, own: TableRows) -> TableRows:
    """The rows of a device's table of Marlin's experts, and those of gpt-oss as an L40S and Kimi-K2 suggest them."""
    sizes = _of(FROM, FORMAT)
    alone = np.asarray(sizes.sizes["ep"]) == 1
    sizes = sizes._replace(
        sizes={k: v[alone] if isinstance(v, np.ndarray) else v for k, v in sizes.sizes.items()},
        seconds=sizes.seconds[alone],
        unseen=sizes.unseen[alone],
    )
    there, here = _rows(FROM, "vllm", sizes), _rows(device, "vllm", sizes)
    calls, here_beside, there_beside = _slowness(there, sizes), *(_beside(name) for name in (device, FROM))
    places = zip(calls.rows, calls.weights, strict=True)
    over_base = calls.over_base + np.array([_at(here_beside, *one) - _at(there_beside, *one) for one in places])
    moved = here._replace(seconds=_base(here) * 2**over_base)
    return _joined(own, moved)


def _of(device: str, number: str) -> SizedRows:
    return next(rows for rows in mixtures(device, "vllm") if rows.number == number)


def _base(rows: TableRows) -> np.ndarray:
    return np.asarray(SHAPES[rows.kind].base(rows.terms, rows.dims))


def _slowness(rows: TableRows, sizes: SizedRows) -> Slowness:
    """Of the calls whose experts are all on one device."""
    whole = np.broadcast_to(np.asarray(sizes.sizes["ep"]) == 1, rows.seconds.shape)
    weights = np.asarray(rows.dims["hidden"] * rows.dims["inner"])
    columns = (rows.dims["rows"] / rows.dims["experts"], weights, rows.seconds / _base(rows))
    return Slowness(*(np.log2(column[whole]) for column in columns))


@cache
def _beside(device: str) -> Slowness:
    """Of the model that two tables have."""
    sizes = _of(device, BESIDE)
    return _slowness(_rows(device, "vllm", sizes), sizes)


def _at(calls: Slowness, rows: float, weights: float) -> float:
    """Between the sizes of experts, and on each between the numbers of rows."""
    sizes = np.unique(calls.weights)
    each = []
    for size in sizes:
        chosen = calls.weights == size
        order = np.argsort(calls.rows[chosen])
        each.append(np.interp(rows, calls.rows[chosen][order], calls.over_base[chosen][order]))
    return float(np.interp(weights, sizes, each))


def _joined(one: TableRows, other: TableRows) -> TableRows:
    """All rows of two tables of one kind."""

    def both(a: object, b: object) -> np.ndarray:
        return np.concatenate(
            [np.broadcast_to(np.asarray(x, float), t.seconds.shape) for x, t in ((a, one), (b, other))]
        )

    return one._replace(
        dims={name: both(value, other.dims[name]) for name, value in one.dims.items()},
        terms=type(one.terms)(*map(both, one.terms, other.terms)),
        seconds=both(one.seconds, other.seconds),
        unseen=both(one.unseen, other.unseen).astype(bool),
    )
