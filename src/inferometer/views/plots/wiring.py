"""Which operator reads which inside a block, for a drawing: operators that took time, residual sums, their ranks.

A report has rows, a model has blocks; `shown` brings them together, `wire` makes a small graph of one block. What runs
along its edges are tensors, whose shapes `shape_texts` writes as an engineer would.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...base.cache import cache_by_identity
from ...base.symbols import Program, constant
from ...inference.report import OpRow, Phase
from ...network.graph import Block, Model
from ...network.operators import Op

ENTRY, EXIT = -1, -2  # where the block's input comes in and its output goes out
TIMES = " × "


class BlockRows(NamedTuple):
    """A block with the operators of it that took time: place in the block -> row, and its part of the row."""

    block: Block
    rows: dict[int, tuple[OpRow, float]]

    @property
    def share(self) -> float:
        """Of the phase's time."""
        return sum(row.share * part for row, part in self.rows.values())


class Edge(NamedTuple):
    """From a producer to a reader; what goes through the cache is ``kept``, what skips a part is ``residual``."""

    start: int
    end: int
    kept: bool = False
    residual: bool = False


class Wiring(NamedTuple):
    """Operators by their place in the block; numbers from ``len(block.ops)`` on are residual sums."""

    edges: list[Edge]
    ranks: dict[int, int]


def shown(model: Model, phase: Phase) -> tuple[list[BlockRows], list[OpRow]]:
    """The blocks that took time, in order, and the rows that are no operator of the model (the engine's own).

    Rows come block by block in the order of the model, without the operators that have no work. Blocks may be alike
    in name and begin alike, so each run of rows belongs to the block that explains most of it.
    """
    left = list(phase.ops)
    rows_of: dict[int, dict[int, OpRow]] = {}
    own: list[OpRow] = []
    while left:
        fits = {i: _fit(block, left) for i, block in enumerate(model.blocks) if i not in rows_of}
        best = max(fits, key=lambda i: (len(fits[i]), -i), default=-1)
        if best < 0 or not fits[best]:
            own.append(left.pop(0))
            continue
        rows_of[best] = fits[best]
        del left[: len(fits[best])]
    parts = [BlockRows(model.blocks[i], _shared(model.blocks[i], rows)) for i, rows in sorted(rows_of.items())]
    return [p for p in parts if p.rows], [row for row in own if row.seconds > 0]


def _fit(block: Block, rows: list[OpRow]) -> dict[int, OpRow]:
    """The first rows as operators of a block, as far as they go."""
    fitted: dict[int, OpRow] = {}
    for index, op in enumerate(block.ops):
        if len(fitted) < len(rows) and _same(op, block, rows[len(fitted)]):
            fitted[index] = rows[len(fitted)]
    return fitted


def _shared(block: Block, rows: dict[int, OpRow]) -> dict[int, tuple[OpRow, float]]:
    """Rows that took time; an operator that stands twice in a block shares its row with itself."""
    shared: dict[int, tuple[OpRow, float]] = {}
    for index, row in rows.items():
        twins = [i for i, op in enumerate(block.ops) if op is block.ops[index] and (i == index or i not in rows)]
        if row.seconds > 0:
            shared |= {i: (row, 1 / len(twins)) for i in twins}
    return dict(sorted(shared.items()))


def _same(op: Op, block: Block, row: OpRow) -> bool:
    return (op.name, op.kind, block.name, op.formula) == (row.name, row.kind, row.block, row.formula)


def wire(part: BlockRows) -> Wiring:
    """Connect the operators of a block that took time; what did not is as if it were not there."""
    return _wired(part.block, *part.rows)


@cache_by_identity(2000)
def _wired(block: Block, *visible: int) -> Wiring:
    return _Wirer(block, visible).run()


def attends(op: Op) -> bool:
    """Whether it reads the cache."""
    return op.kind.endswith("_attention")


class _Wirer:
    def __init__(self, block: Block, visible: Sequence[int]) -> None:
        self.ops, self.residual, self.visible = block.ops, block.residual, visible
        self.edges: list[Edge] = []
        self.ranks: dict[int, int] = {ENTRY: 0}
        self.stream = ENTRY  # what the residual connection carries
        self.segment: list[int] = []  # operators since the last residual sum
        self.joins = 0

    def run(self) -> Wiring:
        cuts = _cuts(self.ops) if self.residual else set()
        before = -1
        for i in self.visible:
            if self.segment and any(before < cut <= i for cut in cuts):
                self._join()
            self._add(i)
            before = i
        ends = [self._join()] if self.residual else self._loose()
        self.edges += [Edge(j, EXIT) for j in ends]
        self.ranks[EXIT] = 1 + max(self.ranks.values())
        return Wiring(self.edges, self.ranks)

    def _add(self, i: int) -> None:
        op = self.ops[i]
        together = self._loose() if op.kind == "all_reduce" and op.inputs is None else []  # of all branches before it
        sources = together or self._inputs(i)
        kept: list[int] = []
        if attends(op):
            more, kept = self._read_from_cache(op, sources)
            sources += more
        for j in [j for j in sources if self._kind(j) == "kv_write"]:
            sources.remove(j)  # what was just written to the cache is also at hand
            sources += [e.start for e in self.edges if e.end == j and e.start not in sources]
            kept.append(j)
        passed = {e.start for e in self.edges if e.end in sources and self._kind(e.start).endswith("attention")}
        sources = [j for j in dict.fromkeys(sources) if j not in passed] or [self.stream]
        self.edges += [Edge(j, i) for j in sources] + [Edge(j, i, kept=True) for j in dict.fromkeys(kept)]
        self.ranks[i] = max([self.ranks[j] + 1 for j in sources] + [self.ranks[j] for j in kept])
        self.segment.append(i)

    def _read_from_cache(self, op: Op, sources: list[int]) -> tuple[list[int], list[int]]:
        """What an attention reads beside its sources: directly, and through the cache."""
        waiting = [j for j in self._loose(cached=True) if j not in sources]
        caches = [j for j in waiting if self.ops[j].kind == "kv_write"]
        if op.name != "attention":
            return [], caches[-1:]  # an index has a cache of its own, written just before
        twins = [j for j in self.segment if self.ops[j].name == op.name and attends(self.ops[j])]
        direct = [j for j in waiting if j not in caches and not attends(self.ops[j])]
        return direct, caches + [e.start for e in self.edges if e.end in twins and e.kept]

    def _inputs(self, i: int) -> list[int]:
        op = self.ops[i]
        line = [j for j in self.segment if self.ops[j].kind != "kv_write"]
        if op.inputs is None:
            if line and attends(op) and self.ops[line[-1]].name == op.name:  # prompts and decoding, side by side
                return [e.start for e in self.edges if e.end == line[-1] and not e.kept]
            return self._named(self.ops[line[-1]].name, line) if line else [self.stream]
        if not op.inputs and not _flows(op) and line:  # it leaves nothing, so it does not start a branch
            return line[-1:]
        named = [j for word in op.inputs for j in self._named(word, [j for j in self.visible if j < i])]
        if line and _sends(self.ops[line[-1]]) and {e.start for e in self.edges if e.end == line[-1]} == set(named):
            return line[-1:]  # what these inputs became on their way to other ranks
        if named or not op.inputs or not any(word == other.name for word in op.inputs for other in self.ops[:i]):
            return named or [self.stream]
        return line[-1:] or [self.stream]

    def _kind(self, i: int) -> str:
        return self.ops[i].kind if 0 <= i < len(self.ops) else ""

    def _named(self, word: str, among: list[int]) -> list[int]:
        """The last operator of that name; of each phase where it is an attention."""
        return list({self.ops[j].kind: j for j in among if self.ops[j].name == word}.values())

    def _loose(self, cached: bool = False) -> list[int]:
        """Operators with an output that is not read yet; with ``cached`` also those that leave theirs in memory."""
        read = {e.start for e in self.edges}
        return [j for j in self.segment if j not in read and (cached or _flows(self.ops[j]))]

    def _join(self) -> int:
        """A residual sum of what the segment made and what went past it."""
        join = len(self.ops) + self.joins
        ends = self._loose() or self.segment[-1:]
        self.edges += [Edge(j, join) for j in ends] + [Edge(self.stream, join, residual=True)]
        self.ranks[join] = 1 + max(self.ranks[j] for j in self.segment)
        self.joins, self.stream, self.segment = self.joins + 1, join, []
        return join


def _cuts(ops: tuple[Op, ...]) -> set[int]:
    """Where a new part of a residual block starts: at its next norm with residual, or after one that closes a part."""
    sums = [i for i, op in enumerate(ops) if op.kind == "norm" and _adds(op)]
    direct = {i for i, op in enumerate(ops) if i and op.kind == "linear" and op.inputs == ()}  # reads the stream itself
    if not sums:
        return direct
    closing = any(attends(op) or op.kind in ("scan", "chunk_scan") for op in ops[: sums[0]])
    return direct | ({i + 1 for i in sums} if closing else set(sums[1:]))


def _sends(op: Op) -> bool:
    return str(op.work.sent) != "0"


def _flows(op: Op) -> bool:
    """Whether an output goes on to the next operator; collectives hand on what they were given."""
    return _sends(op) or str(op.output) != "0"


def _adds(op: Op) -> bool:
    """Whether a norm adds the residual stream: then it reads two tensors of its output's size."""
    formulas = [f if hasattr(f, "op") else constant(f) for f in (op.work.reads, op.output)]
    ones: defaultdict[str, float] = defaultdict(lambda: 1.0)
    reads, output = Program(formulas)(ones)
    return bool(reads > 1.5 * output)


# ------------------------------------------------------------------ shapes


def shape_texts(shape: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """The tensors of an operator: ``shape_texts({"keys": [34816, 8, 128], "sequences": [32]})``

    # {'keys': '32 × 1088 × 8 × 128'}
    """
    tensors = {name: list(sizes) for name, sizes in shape.items() if name != "sequences"}
    (sequences,) = shape.get("sequences", [0.0])
    if sequences and "keys" in tensors:  # a sum over sequences is no tensor of any of them
        rows, *rest = tensors["keys"]
        tensors["keys"] = [sequences, rows / sequences, *rest]
    return {name: text for name, sizes in tensors.items() if (text := shape_text(sizes))}


def shape_text(sizes: Sequence[float]) -> str:
    """One tensor: ``shape_text([57.4, 7168])  # '≈ 57 × 7168'``; nothing of one without elements.

    Less than a row in the mean is a row in some steps: ``shape_text([0.25, 4096])  # '1 × 4096 in 1 of 4 steps'``
    """
    if not sizes or 0 in sizes:
        return ""
    rows = sizes[0]
    text = TIMES.join(str(max(1, math.floor(size + 0.5))) for size in sizes)
    if rows < 1 - 1e-6:
        every = 1 / rows
        return f"{text} in {f'1 of {every:.0f}' if _whole(every) else f'{rows:.0%} of'} steps"
    return text if all(map(_whole, sizes)) else f"≈ {text}"


def _whole(size: float) -> bool:
    return abs(size - round(size)) < 1e-6 * max(1.0, size)
