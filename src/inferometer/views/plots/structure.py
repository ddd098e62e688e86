"""The network as a picture: embedding, each kind of layer once with how often it comes, head; laid out by ourselves.

scene = structure(report, model, "decode")
scene.svg()        scene.figure().savefig("structure.png")
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby, product
from typing import Any, NamedTuple

import msgspec

from ...base.units import seconds
from ...costs.parallelism import pipeline_stages
from ...inference.report import OpRow, Report
from ...network.adapters import with_lora
from ...network.graph import Block, Model
from ...specs.structs import Lora
from ..text.terminal import header
from .canvas import BOUNDS, Point, Scene, bounds, text_width
from .palette import ARROW, FAINT, INK, MUTED, PANEL, tint
from .wiring import ENTRY, EXIT, BlockRows, Edge, Wiring, shape_texts, shown, wire

HEIGHT, GAP, SIDE = 46.0, 36.0, 30.0  # of a node, below it, beside it
STEM = 17.0  # an edge goes straight down past the shape that is written beside it, then turns
JOIN = 20.0  # diameter of a residual sum
HEAD, PAD, LANE = 56.0, 24.0, 30.0  # a panel's title, its rim, the room for a residual connection
BETWEEN, AROUND = 56.0, 32.0  # panels, the page
WIDEST = 2600.0  # of a row of panels, before it is broken
DETAILS = ("weight", "keys", "state")  # the tensor that tells an operator from others of its kind


class Panel(NamedTuple):
    """One block, laid out around x = 0 and from y = 0 downwards."""

    part: BlockRows
    wiring: Wiring
    title: str
    middle: dict[int, Point]  # node -> centre of its upper side
    bends: dict[Edge, list[Point]]  # where long edges pass other ranks: (x, y) of their upper ends
    rows: dict[int, tuple[float, float]]  # rank -> upper side and height
    node: float  # width of a node
    left: float
    right: float
    height: float
    layers: tuple[int, ...]  # empty where the block is one of its kind

    @property
    def width(self) -> float:
        """Of the whole panel."""
        return self.right - self.left


def structure(report: Report, model: Model, phase: str) -> Scene:
    """The picture of one phase; colours say what limits each operator, numbers are its share of the phase's time."""
    parts, own = drawn(report, model, phase)
    cut = int(report.plan.get("pipeline_parallel_size", 1))
    kinds = [p for p in parts if p.block.stage == "layer"]
    names = letters(parts)
    panels = [_panel(p, names.get(id(p.block), "")) for p in parts]
    rows = [row for _, group in groupby(panels, lambda p: p.part.block.stage) for row in _broken(list(group))]
    title = header(report)
    notes = [f"{sum(p.block.count for p in kinds)} layers, in the order {layer_order(kinds, names)}"] if names else []
    if cut > 1:
        notes.append(f"the slowest of {cut} pipeline stages")
    order = " · ".join(notes)
    spans = [_span(row) for row in rows]
    left, right = min(a for a, _ in spans), max(b for _, b in spans)
    width = max(right - left, 640.0, text_width(title, 12) * 0.92, text_width(order, 11)) + 2 * AROUND
    axis = (width - right - left) / 2
    height = AROUND + 76 + sum(max(p.height for p in row) + BETWEEN for row in rows) + 34 * len(own) + 40
    scene = Scene(width, height, f"{phase}: {title}")
    took = report.phases[phase].seconds
    scene.text(AROUND, AROUND + 12, f"{phase.capitalize()} · {seconds(took)}", size=17, bold=True)
    scene.text(AROUND, AROUND + 34, title, size=12, color=MUTED)
    scene.text(AROUND, AROUND + 52, order, size=11, color=MUTED)
    y, leaving = AROUND + 76.0, None
    for row, (start, _) in zip(rows, spans, strict=True):
        x, places = axis + start, []
        for panel in row:
            places.append((x - panel.left, y))
            x += panel.width + BETWEEN
        _connect(scene, row, places, leaving)
        for panel, (px, py) in zip(row, places, strict=True):
            _draw(scene, panel, px, py)
        last = max(range(len(row)), key=lambda i: (row[i].layers[-1:], i))
        leaving = (places[last][0], y + row[last].height)
        y += max(p.height for p in row) + BETWEEN
    y -= BETWEEN - 24
    for op in own:
        label = f"{op.name}  {_share(op.share)}  ·  {seconds(op.seconds)}"
        wide = text_width(label, 11) + 20
        color = BOUNDS.get(op.bound, MUTED)
        scene.box(axis - wide / 2, y, wide, 26, fill=tint(color, 0.14), edge=color, radius=5)
        scene.text(axis, y + 17, label, size=11, anchor="middle")
        y += 34
    _legend(scene, report.phases[phase].ops, y + 14)
    return scene


def drawn(report: Report, model: Model, phase: str) -> tuple[list[BlockRows], list[OpRow]]:
    """The blocks that took time in a phase (of a pipeline: in its slowest stage), and the rows that are no operator."""
    stages = [
        shown(stage, report.phases[phase])
        for stage in pipeline_stages(model, int(report.plan["pipeline_parallel_size"]))
    ]
    return min(stages, key=lambda pair: len(pair[1]))


def letters(parts: list[BlockRows]) -> dict[int, str]:
    """Names for kinds of layers by the identity of their block, where there are several: A, B …"""
    kinds = [p for p in parts if p.block.stage == "layer"]
    return {id(p.block): chr(ord("A") + i % 26) for i, p in enumerate(kinds)} if len(kinds) > 1 else {}


# ------------------------------------------------------------------ layout


def _panel(part: BlockRows, letter: str) -> Panel:
    """Ranks downwards; operators of one rank side by side, edges that pass a rank in the gaps between them."""
    block = part.block
    layout = _Layout(part)
    layout.place()
    xs = layout.extent()
    left = min(xs) - PAD - (LANE if block.residual else 0)
    layers = block.layers if block.stage == "layer" or block.count > 1 else ()
    title = " · ".join(filter(None, [letter, "" if block.stage == "layer" else block.name, layer_ranges(layers)]))
    return Panel(
        part=part,
        wiring=layout.wiring,
        title=title,
        middle=layout.middle,
        bends=dict(layout.bends),
        rows=layout.rows,
        node=layout.node,
        left=left,
        right=max(max(xs) + PAD, left + text_width(title, 13) + 70, *_label_ends(part, layout.middle)),
        height=layout.height,
        layers=layers,
    )


class _Layout:
    """Where the operators of a block stand, rank by rank."""

    def __init__(self, part: BlockRows) -> None:
        self.ops, self.wiring = part.block.ops, wire(part)
        self.node = max(200.0, max(_node_widths(part)) + 34)
        self.by_rank: dict[int, list[int]] = defaultdict(list)
        for i, rank in self.wiring.ranks.items():
            if i not in (ENTRY, EXIT):
                self.by_rank[rank].append(i)
        self.rows: dict[int, tuple[float, float]] = {}  # rank -> upper side and height
        self.height = HEAD + GAP
        for rank in sorted(self.by_rank):
            tall = HEIGHT if any(i < len(self.ops) for i in self.by_rank[rank]) else JOIN
            self.rows[rank] = (self.height, tall)
            self.height += tall + GAP
        self.middle: dict[int, Point] = {ENTRY: (0.0, HEAD)}
        self.bends: dict[Edge, list[Point]] = defaultdict(list)
        self.edges = [edge for edge in self.wiring.edges if not edge.residual]

    def place(self) -> None:
        """Give every node its place, from the top down, and every long edge its bends."""
        for rank, (top, tall) in self.rows.items():
            self._place_rank(rank, top, tall)
            self._pass_rank(rank, top)
        self.middle[EXIT] = (0.0, self.height)

    def extent(self) -> list[float]:
        """The x of every side of a node and of every bend."""
        nodes = [(x, _wide(self.ops, i, self.node) / 2) for i, (x, _) in self.middle.items() if i >= 0]
        sides = [x + side for x, half in nodes for side in (-half, half)]
        return sides + [x for points in self.bends.values() for x, _ in points]

    def _above(self, edge: Edge) -> float:
        """Where an edge comes down from the ranks above."""
        return self.bends[edge][-1][0] if self.bends[edge] else self.middle[edge.start][0]

    def _near(self, i: int) -> float:
        """Where the inputs of a node come down."""
        xs = [self._above(edge) for edge in self.edges if edge.end == i and not edge.kept]
        return sum(xs) / len(xs) if xs else 0.0

    def _place_rank(self, rank: int, top: float, tall: float) -> None:
        """Nodes in the order of their inputs; writes to the cache beside their reader, where that is in this rank."""
        nodes = self.by_rank[rank]
        line = sorted((i for i in nodes if not _aside(self.ops, i)), key=lambda i: (self._near(i), i))
        step, alone = self.node + SIDE, len(line) == 1
        first = -(len(line) - 1) / 2 * step
        for i in (i for i in nodes if _aside(self.ops, i)):
            reader = next((e.end for e in self.edges if e.start == i and e.end in line), line[-1] if line else i)
            line.insert(line.index(reader) + 1 if reader in line else 0, i)
            first -= 0 if alone else step / 2
        for k, i in enumerate(line):
            self.middle[i] = (first + k * step, top + (tall - _tall(self.ops, i)) / 2)

    def _pass_rank(self, rank: int, top: float) -> None:
        """Edges that neither start nor end in a rank pass it in the nearest gap."""
        halves = [(self.middle[i][0], _wide(self.ops, i, self.node) / 2 + 14) for i in self.by_rank[rank]]
        taken = [(x - half, x + half) for x, half in halves]
        for edge in self.edges:
            if self.wiring.ranks[edge.start] < rank < self.wiring.ranks[edge.end]:
                x = _free(self._above(edge), taken)
                taken.append((x - 7, x + 7))
                self.bends[edge].append((x, top))


def _node_widths(part: BlockRows) -> list[float]:
    """Pixels that the two lines of every node need."""
    names = [text_width(part.block.ops[i].name, 12.5) + text_width(_share(1.0), 12) for i in part.rows]
    return names + [text_width(_detail(row) + seconds(row.seconds), 10) for row, _ in part.rows.values()]


def _label_ends(part: BlockRows, middle: dict[int, Point]) -> list[float]:
    """How far the shapes below the nodes reach."""
    return [middle[i][0] + text_width(_tensor(row, "output"), 9.5) + 16 for i, (row, _) in part.rows.items()]


def _aside(ops: tuple[object, ...], i: int) -> bool:
    return i < len(ops) and getattr(ops[i], "kind", "") == "kv_write"


def _wide(ops: tuple[object, ...], i: int, node: float) -> float:
    return node if i < len(ops) else JOIN


def _tall(ops: tuple[object, ...], i: int) -> float:
    return HEIGHT if i < len(ops) else JOIN


def _free(x: float, taken: list[tuple[float, float]]) -> float:
    """The place nearest to x that is not taken."""
    spots = [x, *(edge for span in taken for edge in span)]
    return min((s for s in spots if not any(a < s < b for a, b in taken)), key=lambda s: abs(s - x))


def _broken(panels: list[Panel]) -> list[list[Panel]]:
    """A row of panels, in several where it would be too wide."""
    rows: list[list[Panel]] = [[]]
    for panel in panels:
        if rows[-1] and sum(p.width + BETWEEN for p in rows[-1]) + panel.width > WIDEST:
            rows.append([])
        rows[-1].append(panel)
    return rows


def _span(row: list[Panel]) -> tuple[float, float]:
    """How far a row reaches to both sides of the page's axis: one panel stands on it, several around it."""
    if len(row) == 1:
        return row[0].left, row[0].right
    across = sum(p.width for p in row) + BETWEEN * (len(row) - 1)
    return -across / 2, across / 2


# ------------------------------------------------------------------ drawing


def _connect(scene: Scene, row: list[Panel], places: list[Point], leaving: Point | None) -> None:
    """The stream between panels: down from the row above, and from each panel to its neighbour where layers follow."""
    if leaving is not None:
        first = min(range(len(row)), key=lambda i: (row[i].layers[:1], i))
        (x0, y0), (x1, y1) = leaving, places[first]
        points = [(x0, y0), (x1, y1)] if x0 == x1 else [(x0, y0), (x0, y1 - 30), (x1, y1 - 30), (x1, y1)]
        scene.curve(*points, color=INK, width=1.6)
    for (a, pa), (b, pb) in zip(zip(row, places, strict=True), list(zip(row, places, strict=True))[1:], strict=False):
        lane = (pa[0] + a.right + pb[0] + b.left) / 2
        one, other = a.layers, b.layers
        if not one or not other or {i + 1 for i in one} & set(other):
            _around(scene, pa, a.height, lane - 6, pb, 12)
        if {i + 1 for i in other} & set(one):
            _around(scene, pb, b.height, lane + 6, pa, 20)


def _around(scene: Scene, start: Point, height: float, lane: float, end: Point, off: float) -> None:
    low, high = start[1] + height + off, end[1] - off
    scene.curve(
        (start[0], start[1] + height),
        (start[0], low),
        (lane, low),
        (lane, high),
        (end[0], high),
        end,
        color=INK,
        width=1.6,
    )


def _draw(scene: Scene, panel: Panel, x: float, y: float) -> None:
    part, ops = panel.part, panel.part.block.ops
    scene.box(x + panel.left, y, panel.width, panel.height, fill=PANEL, edge=FAINT, radius=10)
    scene.text(x + panel.left + 16, y + 24, panel.title, size=13, bold=True)
    scene.text(x + panel.left + 16, y + 41, f"{_share(part.share)} of the time", size=10.5, color=MUTED)
    if panel.layers:
        often = f"×{part.block.count}"
        wide = text_width(often, 13) + 14
        scene.box(x + panel.right - wide - 12, y + 11, wide, 24, fill=INK, radius=12)
        scene.text(x + panel.right - wide / 2 - 12, y + 28, often, size=13, bold=True, color="white", anchor="middle")
    for edge in panel.wiring.edges:
        _edge(scene, panel, edge, x, y)
    for i, (row, fraction) in part.rows.items():
        _node(scene, row, fraction, x + panel.middle[i][0] - panel.node / 2, y + panel.middle[i][1], panel.node)
    stream = _entry(panel)
    for i, (px, py) in panel.middle.items():
        if i >= len(ops):
            scene.box(x + px - JOIN / 2, y + py, JOIN, JOIN, fill="white", edge=INK, radius=JOIN / 2, width=1.3)
            for a, b in (((-5, 0), (5, 0)), ((0, -5), (0, 5))):
                cx, cy = x + px, y + py + JOIN / 2
                scene.curve((cx + a[0], cy + a[1]), (cx + b[0], cy + b[1]), color=INK, width=1.4, head=False)
        label = _tensor(part.rows[i][0], "output") if i in part.rows else "" if i == EXIT else stream
        low = py if i == ENTRY else py + _tall(ops, i)
        if label and not _aside(ops, i):
            scene.text(x + px + 7, y + low + 14, label, size=9.5, color=MUTED, halo=True)


def _edge(scene: Scene, panel: Panel, edge: Edge, x: float, y: float) -> None:
    ops = panel.part.block.ops
    (x0, y0), (x1, y1) = panel.middle[edge.start], panel.middle[edge.end]
    low = y0 if edge.start == ENTRY else y0 + _tall(ops, edge.start)
    if edge.residual:
        lane = panel.left + LANE * 0.6
        high = low + 5
        points = [(x0, high), (lane, high), (lane, y1 + JOIN / 2), (x1 - JOIN / 2, y1 + JOIN / 2)]
        scene.curve(*((x + a, y + b) for a, b in points), color=ARROW, width=1.3)
        return
    if edge.kept and panel.wiring.ranks[edge.start] == panel.wiring.ranks[edge.end]:
        side = -1 if x0 > x1 else 1
        level = y + y1 + HEIGHT / 2
        scene.curve((x + x0 + side * panel.node / 2, level), (x + x1 - side * panel.node / 2, level), dashed=True)
        return
    into = sorted(
        (e for e in panel.wiring.edges if e.end == edge.end and not e.residual and not _level(panel, e)),
        key=lambda e: panel.bends[e][-1][0] if panel.bends.get(e) else panel.middle[e.start][0],
    )
    port = x1 + (into.index(edge) - (len(into) - 1) / 2) * (16 if 0 <= edge.end < len(ops) else 0)
    points = [(x0, low), (x0, low + STEM)]
    rank = panel.wiring.ranks[edge.start]
    for k, (bx, top) in enumerate(panel.bends.get(edge, [])):
        points += [(bx, top), (bx, top + panel.rows[rank + 1 + k][1] + STEM)]
    points.append((port, y1))
    scene.curve(*((x + a, y + b) for a, b in points), smooth=True, dashed=edge.kept, head=edge.end != EXIT)


def _level(panel: Panel, edge: Edge) -> bool:
    return edge.kept and panel.wiring.ranks[edge.start] == panel.wiring.ranks[edge.end]


def _node(scene: Scene, row: OpRow, fraction: float, x: float, y: float, wide: float) -> None:
    color = BOUNDS.get(row.bound, MUTED)
    scene.box(x, y, wide, HEIGHT, fill=tint(color, 0.09), edge=tint(color, 0.55), radius=6, width=1.1)
    scene.box(x + 1, y + 5, 4, HEIGHT - 10, fill=color, radius=2)
    scene.text(x + 14, y + 18, row.name, size=12.5, bold=True)
    scene.text(x + wide - 10, y + 18, _share(row.share * fraction), size=12, anchor="end", color=color, bold=True)
    scene.text(x + 14, y + 33, _detail(row), size=9.5, color=MUTED)
    scene.text(x + wide - 10, y + 33, seconds(row.seconds * fraction), size=9.5, color=MUTED, anchor="end")
    full = wide - 24
    scene.box(x + 14, y + HEIGHT - 7, full, 2.5, fill=tint(color, 0.18))
    scene.box(x + 14, y + HEIGHT - 7, max(0.5, full * row.share * fraction), 2.5, fill=color)


def _legend(scene: Scene, ops: list[OpRow], y: float) -> None:
    x = AROUND
    for word, color in bounds(op.bound for op in ops if op.seconds > 0).items():
        scene.box(x, y - 9, 12, 12, fill=color, radius=3)
        scene.text(x + 18, y + 1, word, size=10.5, color=MUTED)
        x += 36 + text_width(word, 10.5)
    scene.text(
        AROUND,
        y + 19,
        "% and time: of the phase, all layers · shapes: one GPU, one layer, mean step · dashed: through the KV cache",
        size=9.5,
        color=MUTED,
    )


# ------------------------------------------------------------------ labels


def _share(value: float) -> str:
    return "<0.1%" if 0 < value < 0.0005 else f"{value * 100:.1f}%" if value < 0.9995 else "100%"


def _tensor(row: OpRow, word: str) -> str:
    return shape_texts(row.shape).get(word, "")


def _detail(row: OpRow) -> str:
    tensors = shape_texts(row.shape)
    return next((f"{word} {tensors[word]}" for word in DETAILS if word in tensors), row.kind.replace("_", " "))


def _entry(panel: Panel) -> str:
    """The shape of what comes in: the input of the first operator that reads it, where that is the stream."""
    firsts = [e.end for e in panel.wiring.edges if e.start == ENTRY and e.end in panel.part.rows]
    norms = [i for i in firsts if panel.part.block.ops[i].kind == "norm"]
    sizes = {_tensor(panel.part.rows[i][0], "input") for i in norms or firsts}
    return sizes.pop() if len(sizes) == 1 else ""


def layer_ranges(layers: tuple[int, ...]) -> str:
    """``layer_ranges((0, 1, 2, 4))  # 'layers 0–2, 4'``"""
    if not layers:
        return ""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(layers), lambda pair: pair[1] - pair[0])]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ("layer " if len(layers) == 1 else "layers ") + ", ".join(texts[:3]) + (" …" if len(texts) > 3 else "")


def layer_order(kinds: list[BlockRows], names: dict[int, str]) -> str:
    """``(5 × A, B) × 10, 2 × A``: which kind of layer follows which."""
    which = {i: names[id(p.block)] for p in kinds for i in p.block.layers}
    runs = [(name, len(list(group))) for name, group in groupby(which[i] for i in sorted(which))]
    if len(runs) <= 4:
        return _sequence(runs)
    for start, period in product(range(4), range(1, 9)):
        cycle, times = runs[start : start + period], _repeats(runs[start:], period)
        rest = runs[start + times * period :]
        if times > 1 and len(rest) < 4:
            return ", ".join(
                filter(None, [_sequence(runs[:start]), f"({_sequence(cycle)}) × {times}", _sequence(rest)])
            )
    return _sequence(runs) if len(runs) <= 10 else "".join(which[i] for i in sorted(which))


def _repeats(runs: list[tuple[str, int]], period: int) -> int:
    """How often the first runs come one after the other, right from the start."""
    times = 1
    while runs[times * period : (times + 1) * period] == runs[:period]:
        times += 1
    return times


def _sequence(runs: list[tuple[str, int]]) -> str:
    return ", ".join(f"{n} × {name}" if n > 1 else name for name, n in runs)


# ------------------------------------------------------------------ the network as data


def graph(report: Report, model: Model) -> dict[str, Any]:
    """The same for a page that draws it itself: ``graph(report, model)["decode"]["blocks"][1]["count"]  # 32``

    Every phase: ``blocks`` in their order, ``own`` rows that are no operator, the ``shapes`` of all rows as texts, and
    how kinds of layers follow.
    """
    if report.plan.get("lora"):
        model = with_lora(model, msgspec.convert(report.plan["lora"], Lora))
    return {phase: _phase_graph(report, model, phase) for phase in report.phases}


def _phase_graph(report: Report, model: Model, phase: str) -> dict[str, Any]:
    places = {id(row): place for place, row in enumerate(report.phases[phase].ops)}
    parts, own = drawn(report, model, phase)
    names = letters(parts)
    kinds = [p.block for p in parts if p.block.count > 1 or p.block.stage == "layer"]
    return {
        "blocks": [_block_graph(part, names.get(id(part.block), ""), places, kinds) for part in parts],
        "own": [places[id(row)] for row in own],
        "shapes": [shape_texts(row.shape) for row in report.phases[phase].ops],
        "order": layer_order([p for p in parts if p.block.stage == "layer"], names) if names else "",
    }


def _block_graph(part: BlockRows, letter: str, places: dict[int, int], kinds: list[Block]) -> dict[str, Any]:
    """A node is ``in``, ``out``, a residual ``sum`` or an operator: ``row`` is its place among the phase's ``ops``.

    An operator that stands twice in a block has half of its row each time: ``part``. After a layer of the block may
    come one of the ``next`` blocks; ``last`` is its last layer.
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
        "last": max(block.layers, default=0),
        "next": [b.name for b in kinds if b is not block and {i + 1 for i in block.layers} & set(b.layers)],
        "share": part.share,
        "nodes": nodes,
        "edges": [{"from": e.start, "to": e.end, "kind": _edge_kind(e)} for e in wiring.edges],
    }


def _edge_kind(edge: Edge) -> str:
    return "cache" if edge.kept else "residual" if edge.residual else "flow"
