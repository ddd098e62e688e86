"""What each GPU holds and what travels over each link, for a terminal: ``cluster(placement(request))``"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...base.units import percent, plural, seconds, si, size
from ...inference.placement import Flow, Placement, StageContents
from .document import Column, Page, Paragraph, Part, TextTable

_PARTS = ("weights", "kv_cache", "activation", "overhead")


def cluster(placed: Placement) -> Page:
    """The machine in a line, the stages' contents, and each phase's traffic."""
    parts: list[Part] = [Paragraph(header(placed), style="bold")]
    if placed.reason:
        parts.append(Paragraph(f"✗ infeasible: {placed.reason}", style="bold red"))
    links = " · ".join(
        f"{link.name} {si(link.bandwidth, 'B/s')}" + (f" ({link.note})" if link.note else "") for link in placed.links
    )
    parts += [Paragraph(f"links per GPU, one direction: {links}", style="dim"), Paragraph("")]
    if placed.stages:
        parts.append(_contents(placed))
    parts += [_traffic(placed, phase) for phase in placed.phases]
    return Page(parts)


def header(placed: Placement) -> str:
    """``16 × NVIDIA H200 · 2 nodes of 8 · tp 8 · pp 2``"""
    sizes = [f"{axis} {ranks}" for axis, ranks in placed.parallel.items() if ranks > 1]
    whole = placed.gpus_per_node > placed.gpus_per_board  # a rack counts as a node
    nodes = f"{plural(placed.nodes, f'{placed.links[0].name} domain' if whole else 'node')} of {placed.gpus_per_node}"
    if placed.gpus_per_domain > placed.gpus_per_node:
        nodes += f", {placed.links[0].name} between them"
    return " · ".join([f"{placed.num_gpus:,} × {placed.label}", nodes, *sizes])


def rank_rows(placed: Placement) -> list[dict[str, Any]]:
    """A row for each rank, with the bytes of its stage: ``rank_rows(placed)[0]["weights_bytes"]``"""
    rows = []
    for rank in placed.ranks:
        stage = placed.stages[rank.stage]
        pairs = {name: span(value) for name, value in msgspec.structs.asdict(rank).items()}
        held = {f"{part}_bytes": getattr(stage.memory, f"{part}_bytes") for part in (*_PARTS, "total", "usable")}
        rows.append({**pairs, "layers": span(stage.layers), **held})
    return rows


def span(value: Any) -> Any:
    """First and last as people write them: ``span([8, 15])  # '8-15'``"""
    if not isinstance(value, list):
        return value
    return "-".join(map(str, dict.fromkeys(value)))


def _contents(placed: Placement) -> TextTable:
    columns = [Column("stage", "<"), Column("ranks"), Column("layers"), Column("heads\nper rank", priority=3)]
    columns += [
        Column("experts\nper rank", priority=2),
        Column("weights"),
        Column("KV cache"),
        Column("activations", priority=1),
    ]
    columns += [Column("overhead", priority=4), Column("free of\nusable", priority=1)]
    table = TextTable(columns, "What each GPU holds", elsewhere="--json")
    each = placed.num_gpus // len(placed.stages)
    for stage in placed.stages:
        first = stage.stage * each
        held = stage.memory
        table.add_row(
            str(stage.stage),
            span([first, first + each - 1]),
            span(stage.layers),
            _per_rank(stage.attention_heads, placed.parallel["tp"]),
            _experts(placed, stage),
            *(size(getattr(held, f"{part}_bytes")) for part in _PARTS),
            size(max(0.0, held.usable_bytes - held.total_bytes)),
        )
    return table


def _per_rank(total: int | None, ranks: int) -> str:
    return f"{-(-total // ranks)} of {total}" if total else ""


def _experts(placed: Placement, stage: StageContents) -> str:
    if not stage.experts or placed.experts_sliced == 1:
        return _per_rank(stage.experts, placed.parallel["ep"])
    return f"1/{placed.experts_sliced} of each of {stage.experts}"


def _traffic(placed: Placement, phase: str) -> TextTable | Paragraph:
    """What a rank sends, by stage, operator and link; calls of all layers together."""
    time = placed.phases[phase]
    title = f"What a rank sends · {phase} · {seconds(time.seconds)}" + (
        f" in {time.steps:g} steps" if time.steps > 1 else ""
    )
    columns = [
        Column("stage", "<", priority=1),
        Column("operator", "<", folds=True),
        Column("ranks"),
        Column("calls", priority=3),
    ]
    columns += [Column("over", "<"), Column("bytes"), Column("time"), Column("share"), Column("achieved", priority=2)]
    table = TextTable(columns, title, elsewhere="--json")
    for stage in placed.stages:
        groups: dict[tuple[str, str, int], list[Flow]] = {}
        for flow in stage.flows[phase]:
            groups.setdefault((f"draft: {flow.name}" if flow.draft else flow.name, flow.axis, flow.ranks), []).append(
                flow
            )
        for (name, axis, ranks), flows in groups.items():
            table.add_row(str(stage.stage), name, "" if axis == "host" else f"{axis} {ranks}", *_sums(flows))
    return table if table.rows else Paragraph(f"{title}: nothing")


def _sums(flows: Sequence[Flow]) -> list[str]:
    """Calls, links, bytes, time, share and bandwidth of some flows together."""
    took, sent = sum(flow.seconds for flow in flows), sum(flow.sent for flow in flows)
    over = dict.fromkeys(name for flow in flows for name in flow.links)
    reached = f"{si(sent / took, 'B/s')} of {si(flows[0].peak_bandwidth, 'B/s')}" if took else ""
    calls = sum(flow.count for flow in flows)
    return [f"{calls:,.0f}", " + ".join(over), size(sent), seconds(took), percent(sum(f.share for f in flows)), reached]
