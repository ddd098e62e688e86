"""Collectives: what ranks send each other. At one rank they move nothing.

``sent`` is the least that any algorithm must send from each rank and ``hops`` the fewest messages in a row; how long it
really takes is the collectives' own model (which algorithm, which protocol). ``axis`` says which ranks take part.
"""

from __future__ import annotations

from ...base.symbols import Formula, minimum
from ...base.symbols import names as s
from .op import Op, Work, operator


def _collective(
    kind: str,
    name: str,
    size: Formula,
    share: Formula,
    ranks: Formula,
    axis: str,
    shape: tuple[Formula, ...],
    inputs: tuple[str, ...] | None = None,
) -> Op:
    return Op(
        name,
        kind,
        Work(sent=share * size, hops=minimum(ranks - 1, 1)),
        {"bytes": size, "ranks": ranks},
        inputs=inputs,
        output=0,
        shape={"input": shape, "output": shape},
        axis=axis,
    )


@operator("all_reduce")
def all_reduce(
    name: str,
    width: Formula,
    *,
    m: Formula = s.tokens,
    ranks: Formula = s.tp,
    axis: str = "tp",
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """Sum ``m × width`` partial results over ranks: each must send 2·(n-1)/n of the tensor."""
    share = 2 * (ranks - 1) / ranks
    return _collective("all_reduce", name, m * width * s.act_bytes, share, ranks, axis, (m, width), inputs)


@operator("all_gather")
def all_gather(name: str, width: Formula, *, m: Formula = s.tokens, ranks: Formula = s.tp, axis: str = "tp") -> Op:
    """Collect the shards of an ``m × width`` tensor."""
    return _collective("all_gather", name, m * width * s.act_bytes, (ranks - 1) / ranks, ranks, axis, (m, width))


@operator("reduce_scatter")
def reduce_scatter(name: str, width: Formula, *, m: Formula = s.tokens, ranks: Formula = s.tp, axis: str = "tp") -> Op:
    """Sum an ``m × width`` tensor over ranks and leave each its shard."""
    return _collective("reduce_scatter", name, m * width * s.act_bytes, (ranks - 1) / ranks, ranks, axis, (m, width))


@operator("all_to_all")
def all_to_all(
    name: str,
    width: Formula,
    *,
    rows: Formula,
    each: Formula = s.act_bytes,
    ranks: Formula = s.ep,
    axis: str = "ep",
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """Send ``rows`` rows of ``width`` elements to where they belong; a share 1/n of them stays."""
    return _collective("all_to_all", name, rows * width * each, (ranks - 1) / ranks, ranks, axis, (rows, width), inputs)


@operator("send")
def send(name: str, width: Formula, *, m: Formula = s.tokens, axis: str = "pp") -> Op:
    """Hand ``m × width`` elements to the next pipeline stage."""
    size = m * width * s.act_bytes
    return Op(
        name,
        "send",
        Work(sent=size, hops=1),
        {"bytes": size, "ranks": 2},
        output=0,
        shape={"input": (m, width)},
        axis=axis,
    )
