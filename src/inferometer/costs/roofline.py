"""The one cost function: a graph and a binding of its names in, seconds per operator out. Floats or arrays alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..base.cache import cache_by_identity
from ..base.symbols import Env, Expr, Program, Value, constant, evaluate, lift, maximum_of, minimum_of, scalar
from ..network.graph import Block
from ..network.operators import MEMORY_FIELDS, WORK_FIELDS, Op
from .dedup import dedup_by_tokens, split_token_only_ops
from .kernels import Source, Terms

_BOUNDS = ("memory", "compute", "communication")


class OpCost(NamedTuple):
    """One operator, priced: figures of one call, and how many calls there are."""

    block: Block
    op: Op
    count: Value
    work: dict[str, Value]
    terms: Terms
    origin: Any  # a word, or an array of words
    seconds: Value  # of one call

    @property
    def efficiency(self) -> Value:
        """Roofline seconds over real ones; of the first point, where there are several."""
        took = _first(self.seconds)
        return _first(self.terms.roofline) / took if took else 1.0

    @property
    def bytes(self) -> Value:
        """Bytes through the device's memory in one call."""
        return sum(self.work[f] for f in MEMORY_FIELDS)

    @property
    def bound(self) -> str:
        """What limits it: memory, compute or communication (of the first point, where there are several)."""
        t = [_first(x) for x in (self.terms.memory, self.terms.compute, self.terms.link + self.terms.latency)]
        return _BOUNDS[t.index(max(t))]


def _first(value: Value) -> float:
    return float(value) if scalar(value) else float(value.flat[0])


@cache_by_identity(2000)
def _program(block: Block, brief: bool) -> Program:
    """The formulas of a block, put in order once. ``brief`` has only what time needs."""
    formulas: list[Expr] = []
    for op in block.ops:
        values = {f: lift(getattr(op.work, f)) for f in WORK_FIELDS}
        if brief:
            moved = constant(0)
            for f in MEMORY_FIELDS:
                moved = moved + values[f]
            formulas += [values["flops"], moved, values["sent"], values["hops"]]
        else:
            formulas += values.values()
    return Program(formulas)


def _terms(op: Op, flops: Value, moved: Value, sent: Value, hops: Value, env: Env) -> Terms:
    link: Value = sent / env[f"{op.axis}_bandwidth"] if op.axis else 0.0
    wait: Value = hops * (sent > 0) * env[f"{op.axis}_latency"] if op.axis else 0.0
    return Terms(flops / env[op.peak], moved / env["memory_bandwidth"], link, wait, env["unfused"])


def weight_sum(blocks: tuple[Block, ...], env: Env, field: str) -> Value:
    """Sum of a field of work over all blocks: stored bytes, parameters, weights read."""
    found: Value = 0.0
    for block in blocks:
        formulas = [lift(getattr(op.work, field)) for op in block.ops]
        found = found + block.count * sum(Program(formulas)({**env, **block.dims}))
    return found


def _answer(op: Op, env: Env, terms: Terms, sources: tuple[Source, ...]) -> tuple[Value, Any]:
    """The first source that knows this kind of operator, point by point."""

    def dims() -> dict[str, Value]:
        return {k: evaluate(v, env) for k, v in op.dims.items()}

    mine = [source for source in sources if source.kinds is None or op.kind in source.kinds]
    for number, source in enumerate(mine):
        took = source.answer(op, dims, terms)
        if not scalar(took):
            return _filled(op, dims, terms, took, mine[number:])
        if took == took:  # not nan: known, and NumPy stays unloaded
            return took, source.origin_of(op)
    return took, "assumed"


def _filled(
    op: Op, dims: Callable[[], dict[str, Value]], terms: Terms, took: Value, mine: list[Source]
) -> tuple[Value, Any]:
    """An array of answers, what the first source does not know filled by the next."""
    import numpy as np

    origin: Any = mine[0].origin_of(op)
    for source in mine[1:]:
        missing = np.isnan(took)
        if not np.any(missing):
            break
        took = np.where(missing, source.answer(op, dims, terms), took)
        origin = np.where(missing, source.origin_of(op), origin)
    return took, origin


def op_costs(block: Block, env: Env, sources: tuple[Source, ...]) -> list[OpCost]:
    """Every operator of a block with its work, its efficiency and its seconds."""
    bound = {**env, **block.dims}
    values = _program(block, False)(bound)
    found = []
    for index, op in enumerate(block.ops):
        work = dict(zip(WORK_FIELDS, values[index * len(WORK_FIELDS) : (index + 1) * len(WORK_FIELDS)], strict=True))
        moved = sum(work[f] for f in MEMORY_FIELDS)
        terms = _terms(op, work["flops"], moved, work["sent"], work["hops"], bound)
        took, origin = _answer(op, bound, terms, sources)
        found.append(OpCost(block, op, block.count, work, terms, origin, took))
    return _side_by_side(found, bound) if _pairs(block) else found


def _side_by_side(rows: list[OpCost], env: Env) -> list[OpCost]:
    """Rows of which some run beside others: what that saves is taken off them, but never below their rooflines."""
    gone = side_stream_savings(env, [Timed(row.op, row.seconds, row.terms) for row in rows])
    names = {row.op.side_stream_of for row in rows if row.op.side_stream_of}
    for side in ([row for row in rows if row.op.side_stream_of], [row for row in rows if row.op.name in names]):
        spare = [row.seconds - row.terms.roofline for row in side]
        room = sum(spare)
        taken = minimum_of(gone, room)
        gone = gone - taken
        shorter = {
            id(row): row.seconds - more * taken / maximum_of(room, 1e-30) for row, more in zip(side, spare, strict=True)
        }
        rows = [row._replace(seconds=shorter[id(row)]) if id(row) in shorter else row for row in rows]
    return rows


class Timed(NamedTuple):
    """An operator's seconds, and what it would need at the peak of each resource."""

    op: Op
    seconds: Value
    terms: Terms


@cache_by_identity(2000)
def _pairs(block: Block) -> bool:
    """Whether some operator of a block can run beside another."""
    return any(op.side_stream_of for op in block.ops)


def side_stream_savings(env: Env, rows: list[Timed]) -> Value:
    """Seconds that a block saves by a second stream: kernels side by side take as long as the longer of them, but
    never less than their rooflines together."""
    limit = env["side_stream_tokens"]
    if not rows or not limit:
        return 0.0
    names = {row.op.side_stream_of for row in rows}
    pair = [[row for row in rows if row.op.side_stream_of], [row for row in rows if row.op.name in names]]
    aside, main = (sum(row.seconds for row in side) for side in pair)
    saved = aside + main - maximum_of(maximum_of(aside, main), sum(row.terms.roofline for side in pair for row in side))
    return maximum_of(saved, 0.0) * (env["tokens"] <= limit)


def kernel_seconds(blocks: tuple[Block, ...], env: Env, sources: tuple[Source, ...]) -> Value:
    """The kernels' time of a step, nothing else: what sweeps and simulations ask a million times.

    A share ``overlap`` of the shorter of computing and communicating runs behind the other.
    """
    folded = dedup_by_tokens(env)
    if folded is None:
        computing, linked = _sums(blocks, env, sources)
    else:
        light, rest = zip(*map(split_token_only_ops, blocks), strict=True)
        once, each = _sums(light, folded.env, sources), _sums(rest, env, sources)
        computing, linked = (folded.unfold(a) + b for a, b in zip(once, each, strict=True))
    return computing + linked - overlapped_seconds(env, computing, linked)


def _sums(blocks: tuple[Block, ...], env: Env, sources: tuple[Source, ...]) -> tuple[Value, Value]:
    """Seconds of computing, and of communicating."""
    result: Value = 0.0
    linked: Value = 0.0
    for block in blocks:
        bound = {**env, **block.dims}
        values = _program(block, True)(bound)
        total: Value = 0.0
        pairs: list[Timed] = []
        several = _pairs(block)
        for index, op in enumerate(block.ops):
            flops, moved, sent, hops = values[4 * index : 4 * index + 4]
            if scalar(flops, moved, sent, hops) and not (flops or moved or sent):
                continue
            terms = _terms(op, flops, moved, sent, hops, bound)
            took = _answer(op, bound, terms, sources)[0]
            if op.axis:
                linked = linked + block.count * took
            else:
                total = total + took
            if several:
                pairs.append(Timed(op, took, terms))
        result = result + block.count * (total - side_stream_savings(bound, pairs))
    return result, linked


def overlapped_seconds(env: Env, computing: Value, linked: Value) -> Value:
    """Seconds of communication that run behind computing."""
    return env["overlap"] * minimum_of(computing, linked) if env["overlap"] else 0.0
