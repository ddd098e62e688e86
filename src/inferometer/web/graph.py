"""The network of a report as data for a page that draws it: blocks, operators, and which of them reads which.

graph(report, model)["decode"]["blocks"][1]["count"]      # 32: layers that are alike are one block
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..inference.report import Report
from ..network.adapters import with_lora
from ..network.graph import Model
from ..specs.structs import Lora
from ..views.plots.structure import drawn, layer_order, layer_ranges, letters
from ..views.plots.wiring import ENTRY, EXIT, BlockRows, Edge, wire


def graph(report: Report, model: Model) -> dict[str, Any]:
    """Every phase: ``blocks`` in their order, ``own`` rows that are no operator, and how kinds of layers follow."""
    if report.plan.get("lora"):
        model = with_lora(model, msgspec.convert(report.plan["lora"], Lora))
    return {phase: _phase(report, model, phase) for phase in report.phases}


def _phase(report: Report, model: Model, phase: str) -> dict[str, Any]:
    places = {id(row): place for place, row in enumerate(report.phases[phase].ops)}
    parts, own = drawn(report, model, phase)
    names = letters(parts)
    return {
        "blocks": [_block(part, names.get(id(part.block), ""), places) for part in parts],
        "own": [places[id(row)] for row in own],
        "order": layer_order([p for p in parts if p.block.stage == "layer"], names) if names else "",
    }


def _block(part: BlockRows, letter: str, places: dict[int, int]) -> dict[str, Any]:
    """A node is ``in``, ``out``, a residual ``sum`` or an operator: ``row`` is its place among the phase's ``ops``.

    An operator that stands twice in a block has half of its row each time: ``part``.
    """
    block, wiring = part.block, wire(part)
    nodes = []
    for node, rank in wiring.ranks.items():
        kind = {ENTRY: "in", EXIT: "out"}.get(node, "op" if node in part.rows else "sum")
        made: dict[str, Any] = {"id": node, "kind": kind, "rank": rank}
        if kind == "op":
            row, share = part.rows[node]
            made |= {"row": places[id(row)], "part": share, "aside": block.ops[node].kind == "kv_write"}
        nodes.append(made)
    return {
        "name": block.name,
        "stage": block.stage,
        "letter": letter,
        "count": block.count,
        "layers": layer_ranges(block.layers),
        "share": part.share,
        "nodes": nodes,
        "edges": [{"from": e.start, "to": e.end, "kind": _kind(e)} for e in wiring.edges],
    }


def _kind(edge: Edge) -> str:
    return "cache" if edge.kept else "residual" if edge.residual else "flow"
