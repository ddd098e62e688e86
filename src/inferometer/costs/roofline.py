"""The one cost function: a graph and a binding of its names in, seconds per operator out. Floats or arrays alike."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from ..base.cache import cache_by_identity
from ..base.symbols import (
    Env,
    Expr,
    Program,
    Value,
    free_names,
    lift,
    maximum_of,
    minimum_of,
    scalar,
    total,
)
from ..network.graph import Block
from ..network.operators import MEMORY_FIELDS, WORK_FIELDS, Op
from .kernels import Source, Terms
from .power import power_constants

_BOUNDS = ("memory", "compute", "communication")
_WEIGHT_KERNELS = ("linear", "moe")  # whose seconds do not depend on the format of the KV cache
MIN_POINTS = 4096  # below this, looking for equal points costs more than it saves
_MAX_TOKENS = 2**22  # above this, a table of all numbers of tokens is too long
_TOKEN_NAMES = frozenset({"tokens", "moe_tokens"})
Row = TypeVar("Row", "OpCost", "Timed")


class OpCost(NamedTuple):
    """The estimated cost of one operator: figures of one call, and how many calls there are."""

    block: Block
    op: Op
    count: Value
    work: dict[str, Value]
    terms: Terms
    origin: Any  # a text, or an array of texts
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


class BlockPrograms:
    """The formulas of a block, each compiled when it is first needed: ``block_programs(block).brief(env)``"""

    def __init__(self, ops: tuple[Op, ...]) -> None:
        self.ops = ops
        self.side_stream = any(op.side_stream_of for op in ops)  # may some of it run beside another operator?

    @functools.cached_property
    def full(self) -> Program:
        """All work fields of each operator in turn."""
        return Program([lift(getattr(op.work, field)) for op in self.ops for field in WORK_FIELDS])

    @functools.cached_property
    def brief(self) -> Program:
        """Of each operator what time needs: FLOPs, bytes through memory, bytes sent, hops."""
        formulas: list[Expr] = []
        for op in self.ops:
            moved = total(getattr(op.work, field) for field in MEMORY_FIELDS)
            formulas += [lift(op.work.flops), moved, lift(op.work.sent), lift(op.work.hops)]
        return Program(formulas)

    @functools.cached_property
    def shapes(self) -> tuple[Program, ...]:
        """Of each operator the shape of its kernel."""
        return tuple(Program([lift(formula) for formula in op.dims.values()]) for op in self.ops)


_ops_programs = cache_by_identity(2000)(BlockPrograms)


def block_programs(block: Block) -> BlockPrograms:
    """The programs of a block's operators: blocks that have the same ones, in other layers, share them."""
    return _ops_programs(block.ops)


def _terms(op: Op, flops: Value, moved: Value, sent: Value, hops: Value, env: Env) -> Terms:
    """Seconds at the peak of each resource: arithmetic, memory, the link's bandwidth and its latency."""
    link: Value = sent / env[f"{op.axis}_bandwidth"] if op.axis else 0.0
    wait: Value = hops * (sent > 0) * env[f"{op.axis}_latency"] if op.axis else 0.0
    return Terms(flops / env[op.peak], moved / env["memory_bandwidth"], link, wait, env["unfused"])


def weight_sum(blocks: tuple[Block, ...], env: Env, field: str) -> Value:
    """Sum of a field of work over all blocks: stored bytes, parameters, weights read."""
    total: Value = 0.0
    for block in blocks:
        total = total + block.count * sum(field_program(block.ops, field)({**env, **block.dims}))
    return total


@cache_by_identity(2000)
def field_program(ops: tuple[Op, ...], field: str) -> Program:
    """One field of the work of each operator: ``field_program(block.ops, "stored")({**env, **block.dims})``"""
    return Program([lift(getattr(op.work, field)) for op in ops])


class Candidates(dict[str, list[Source]]):
    """The sources that have figures for a kind of operator, by kind: ``Candidates(sources)["linear"]``"""

    def __init__(self, sources: tuple[Source, ...]) -> None:
        super().__init__()
        self.sources = sources

    def __missing__(self, kind: str) -> list[Source]:
        self[kind] = [source for source in self.sources if source.kinds is None or kind in source.kinds]
        return self[kind]


_candidates = cache_by_identity(256)(Candidates)


def _lookup(op: Op, shape: Program, env: Env, terms: Terms, candidates: list[Source]) -> tuple[Value, Any]:
    """Seconds of an operator and their origin, from the first source that knows its kind; point by point."""
    sizes: dict[str, Value] = {}

    def dims() -> dict[str, Value]:
        if not sizes:
            sizes.update(zip(op.dims, shape(env), strict=True))
        return sizes

    for number, source in enumerate(candidates):
        seconds = source.answer(op, dims, terms)
        if not isinstance(seconds, float | int):
            return _fill_unknown(op, dims, terms, seconds, candidates[number:])
        if seconds == seconds:  # not nan: known, and NumPy stays unloaded
            return seconds, source.origin_of(op)
    return seconds, "assumed"


def _fill_unknown(
    op: Op, dims: Callable[[], dict[str, Value]], terms: Terms, seconds: Value, sources: list[Source]
) -> tuple[Value, Any]:
    """An array of the first source's seconds; where that one knows nothing (nan), the next source's."""
    import numpy as np

    origin: Any = sources[0].origin_of(op)
    for source in sources[1:]:
        unknown = np.isnan(seconds)
        if not np.any(unknown):
            break
        seconds = np.where(unknown, source.answer(op, dims, terms), seconds)
        origin = np.where(unknown, source.origin_of(op), origin)
    return seconds, origin


def op_costs(block: Block, env: Env, sources: tuple[Source, ...]) -> list[OpCost]:
    """Every operator of a block with its work, its seconds and their origin."""
    bound = {**env, **block.dims}
    programs, candidates = block_programs(block), _candidates(sources)
    values = programs.full(bound)
    rows = []
    for index, op in enumerate(block.ops):
        work = dict(zip(WORK_FIELDS, values[index * len(WORK_FIELDS) : (index + 1) * len(WORK_FIELDS)], strict=True))
        moved = sum(work[f] for f in MEMORY_FIELDS)
        terms = _terms(op, work["flops"], moved, work["sent"], work["hops"], bound)
        seconds, origin = _lookup(op, programs.shapes[index], bound, terms, candidates[op.kind])
        rows.append(OpCost(block, op, block.count, work, terms, origin, seconds))
    return _with_side_stream(rows, bound) if programs.side_stream else rows


# ------------------------------------------------------------------ a second stream


class Timed(NamedTuple):
    """An operator's seconds, and what it would need at the peak of each resource."""

    op: Op
    seconds: Value
    terms: Terms


def side_stream_savings(env: Env, rows: list[Timed]) -> Value:
    """Seconds that a block saves by a second stream.

    Two streams take as long as the longer of them, but never less than all their rooflines together: they share the
    device's memory and its arithmetic units.
    """
    limit = env["side_stream_tokens"]
    if not rows or not limit:
        return 0.0
    side, main = streams = _streams(rows)
    side_seconds, main_seconds = (sum(row.seconds for row in stream) for stream in streams)
    roofline = sum(row.terms.roofline for row in (*side, *main))
    together = maximum_of(maximum_of(side_seconds, main_seconds), roofline)
    return maximum_of(side_seconds + main_seconds - together, 0.0) * (env["tokens"] <= limit)


def _streams(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """The operators of the second stream, and those of the first that they run beside."""
    names = {row.op.side_stream_of for row in rows if row.op.side_stream_of}
    return [row for row in rows if row.op.side_stream_of], [row for row in rows if row.op.name in names]


def _with_side_stream(rows: list[OpCost], env: Env) -> list[OpCost]:
    """Rows with the savings of a second stream taken off: from its own operators first, never below their rooflines."""
    savings = side_stream_savings(env, [Timed(row.op, row.seconds, row.terms) for row in rows])
    for stream in _streams(rows):
        above_roofline = [row.seconds - row.terms.roofline for row in stream]
        most = sum(above_roofline)
        taken = minimum_of(savings, most)
        savings = savings - taken
        shorter = {
            id(row): row.seconds - above * taken / maximum_of(most, 1e-30)
            for row, above in zip(stream, above_roofline, strict=True)
        }
        rows = [row._replace(seconds=shorter[id(row)]) if id(row) in shorter else row for row in rows]
    return rows


# ------------------------------------------------------------------ a step


Sums = tuple[Value, Value, Value, Value]  # seconds of computing, of communicating, at peak FLOP/s, at peak bandwidth
EqualTokens = dict[tuple[Value, Value], Sums]  # see `kernel_work`


class KernelWork(NamedTuple):
    """A step's kernels: their seconds, and what they would need at the peak of the matrix units and of the memory."""

    seconds: Value
    busy: Value  # of these, those that draw as kernels do: collectives wait for a link most of the time
    compute: Value
    memory: Value

    def plus(self, other: KernelWork, times: float = 1.0) -> KernelWork:
        """This, and so many times another: ``work.plus(layer, 32)``"""
        return KernelWork(*(a + times * b for a, b in zip(self, other, strict=True)))


def kernel_seconds(
    blocks: tuple[Block, ...], env: Env, sources: tuple[Source, ...], seen: SeenKernels | None = None
) -> Value:
    """Seconds of a step's kernels, as of `kernel_work`."""
    return kernel_work(blocks, env, sources, seen).seconds


def kernel_work(
    blocks: tuple[Block, ...],
    env: Env,
    sources: tuple[Source, ...],
    seen: SeenKernels | None = None,
    equal_tokens: EqualTokens | None = None,
) -> KernelWork:
    """Seconds and work of a step's kernels: what sweeps and simulations evaluate a million times.

    A share ``overlap`` of the shorter of computing and communicating runs behind the other. ``seen``: kernels of
    other layouts, so that equal ones are looked up once. ``equal_tokens``: a dict that is kept over steps of one plan
    that differ in their contexts alone: what depends on the number of tokens is in it after the first.
    """
    unique = dedup_by_tokens(env)
    if unique is None and equal_tokens is not None and scalar(env["tokens"], env["moe_tokens"]):
        token_only, others = zip(*map(split_token_only_ops, blocks), strict=True)
        key = env["tokens"], env["moe_tokens"]
        if key not in equal_tokens:
            equal_tokens[key] = _sums(token_only, env, sources)
        by_context = _sums(others, env, sources)
        sums = [a + b for a, b in zip(equal_tokens[key], by_context, strict=True)]
    elif unique is None:
        sums = [*_sums(blocks, env, sources, seen)]
    else:
        token_only, others = zip(*map(split_token_only_ops, blocks), strict=True)
        per_count, per_point = _sums(token_only, unique.env, sources, seen), _sums(others, env, sources, seen)
        sums = [unique.expand(a) + b for a, b in zip(per_count, per_point, strict=True)]
    computing, communicating, compute, memory = sums
    alone = communicating - overlapped_seconds(env, computing, communicating)
    return KernelWork(computing + alone, computing + power_constants().linked * alone, compute, memory)


class SeenKernels:
    """Kernels that were looked up before, under other layouts: an operator whose names have equal values and whose
    tables are the same has equal seconds.

    ``SeenKernels({}, ("h200", "bf16", "fp8"), "fp8", places)``; one for each plan, all with the same ``rows``.
    """

    def __init__(
        self, rows: dict[Any, Timed | None], formats: tuple[Any, ...], kv_cache_dtype: str, places: Mapping[str, Any]
    ) -> None:
        self.rows = rows
        self.formats = formats  # the device, the engine, and the formats of weights and activations
        self.kv_cache_dtype = kv_cache_dtype
        self.places = places  # axis -> the links that its collectives run over
        self._arrays: dict[int, tuple[Value, bytes]] = {}  # by identity, held so that no other comes to the same id

    def on(self, places: Mapping[str, Any]) -> SeenKernels:
        """The same for a plan whose ranks sit on other links."""
        other = SeenKernels(self.rows, self.formats, self.kv_cache_dtype, places)
        other._arrays = self._arrays
        return other

    def timed(self, block: Block, env: Env, sources: tuple[Source, ...]) -> Iterator[Timed]:
        """As `_timed`: the operators of a block that have work, those that are new looked up."""
        for number, op in enumerate(block.ops):
            cache = "" if op.kind in _WEIGHT_KERNELS else self.kv_cache_dtype
            values = [self._hashable(env[name]) for name in _op_names(op)]
            key = (id(op), self.formats, cache, self.places.get(op.axis), *values)
            if key not in self.rows:
                self.rows[key] = next(_timed(_single_op(block, number), env, sources), None)
            row = self.rows[key]
            if row is not None:
                yield row

    def _hashable(self, value: Value) -> Any:
        if scalar(value):
            return value
        held = self._arrays.get(id(value))
        if held is None:
            held = self._arrays[id(value)] = (value, value.tobytes())
        return held[1]


@cache_by_identity(2000)
def _single_op(block: Block, number: int) -> Block:
    """A block with one of its operators."""
    return msgspec.structs.replace(block, ops=block.ops[number : number + 1])


@cache_by_identity(2000)
def _op_names(op: Op) -> tuple[str, ...]:
    """The names that an operator's seconds depend on."""
    formulas = [*(getattr(op.work, field) for field in WORK_FIELDS), *op.dims.values()]
    names = {name: None for formula in formulas for name in free_names(formula)}
    link = (f"{op.axis}_bandwidth", f"{op.axis}_latency") if op.axis else ()
    return (*names, *link, op.peak, "memory_bandwidth", "unfused")


def _timed(block: Block, env: Env, sources: tuple[Source, ...]) -> Iterator[Timed]:
    """The operators of a block that have work, with their seconds."""
    programs, candidates = block_programs(block), _candidates(sources)
    values, shapes = programs.brief(env), programs.shapes
    for index, op in enumerate(block.ops):
        flops, moved, sent, hops = values[4 * index : 4 * index + 4]
        if scalar(flops, moved, sent, hops) and not (flops or moved or sent):
            continue
        terms = _terms(op, flops, moved, sent, hops, env)
        yield Timed(op, _lookup(op, shapes[index], env, terms, candidates[op.kind])[0], terms)


def _sums(blocks: tuple[Block, ...], env: Env, sources: tuple[Source, ...], seen: SeenKernels | None = None) -> Sums:
    """Seconds of computing and of communicating, and the seconds that the work needs at the peaks."""
    computing: Value = 0.0
    communicating: Value = 0.0
    compute: Value = 0.0
    memory: Value = 0.0
    timed = seen.timed if seen is not None else _timed
    for block in blocks:
        bound = {**env, **block.dims}
        per_layer: Value = 0.0
        flops: Value = 0.0
        moved: Value = 0.0
        rows: list[Timed] = []
        has_side_stream = block_programs(block).side_stream
        for row in timed(block, bound, sources):
            if row.op.axis:
                communicating = communicating + block.count * row.seconds
            else:
                per_layer = per_layer + row.seconds
            flops, moved = flops + row.terms.compute, moved + row.terms.memory
            if has_side_stream:
                rows.append(row)
        computing = computing + block.count * (per_layer - side_stream_savings(bound, rows))
        compute, memory = compute + block.count * flops, memory + block.count * moved
    return computing, communicating, compute, memory


def overlapped_seconds(env: Env, computing: Value, communicating: Value) -> Value:
    """Seconds of communication that run behind computing."""
    return env["overlap"] * minimum_of(computing, communicating) if env["overlap"] else 0.0


# ------------------------------------------------------------------ arrays of steps that share few numbers of tokens
#
# A grid of 250 batch sizes and 250 lengths has 62,500 prefills, but no more different last steps than a step may have
# tokens. Matrix products, norms and experts depend on nothing but that number, so they are estimated once per number;
# attention and the head see every point.


class UniqueTokens(NamedTuple):
    """The names of many steps with every number of tokens once: ``unique.expand(seconds(unique.env))``"""

    env: dict[str, Value]  # names; its tokens are an array of shape (different numbers,)
    index: Any  # position in that array for every point: an array of the points' shape

    def expand(self, value: Value) -> Value:
        """From one value for each number of tokens to one for each point."""
        return value if scalar(value) else value[self.index]


def dedup_by_tokens(env: Env) -> UniqueTokens | None:
    """The names of many steps by their different numbers of tokens.

    None where that does not pay (few points, few of them equal) or does not hold: arrays of something else than sums
    of steps, or numbers of tokens that are not whole.
    """
    tokens = env["tokens"]
    if scalar(tokens) or tokens.size < MIN_POINTS:
        return None
    if not all(scalar(value) or _is_step_sum(name) for name, value in env.items()):
        return None
    import numpy as np

    nearest = np.rint(tokens)
    if np.abs(tokens - nearest).max() > 1e-6 or nearest.min() < 0 or nearest.max() > _MAX_TOKENS:
        return None
    counts = nearest.astype(np.intp)
    occurs = np.zeros(int(counts.max()) + 1, bool)  # by number of tokens; faster than np.unique, which sorts
    occurs[counts] = True
    unique = np.flatnonzero(occurs)
    if 2 * len(unique) > tokens.size:
        return None
    each = unique.astype(float)
    return UniqueTokens({**env, "tokens": each, "moe_tokens": each * env["dp"]}, (np.cumsum(occurs) - 1)[counts])


def _is_step_sum(name: str) -> bool:
    return name in ("tokens", "moe_tokens", "seqs", "logits", "in_a_row") or name.startswith(("prefill_", "decode_"))


@cache_by_identity(2000)
def split_token_only_ops(block: Block) -> tuple[Block, Block]:
    """A block with the operators whose time depends on the number of tokens alone, and the block with all others.

    Operators that may run beside each other on two streams stay in one of the two.
    """
    token_only = [op for op in block.ops if _step_names(op) <= _TOKEN_NAMES]
    names = {op.name for op in token_only}
    separated = {
        name
        for op in block.ops
        if op.side_stream_of and (op.name in names) != (op.side_stream_of in names)
        for name in (op.name, op.side_stream_of)
    }
    token_only = [op for op in token_only if op.name not in separated]
    others = tuple(op for op in block.ops if not any(op is other for other in token_only))
    return msgspec.structs.replace(block, ops=tuple(token_only)), msgspec.structs.replace(block, ops=others)


def _step_names(op: Op) -> set[str]:
    """The sums of a step that an operator's formulas and its kernel's shape name."""
    formulas = [*(getattr(op.work, field) for field in WORK_FIELDS), *op.dims.values()]
    return {name for formula in formulas for name in free_names(formula) if _is_step_sum(name)}
