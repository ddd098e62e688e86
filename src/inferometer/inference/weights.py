"""What weights take of a device's memory once an engine has loaded them: tensors, tables, and blocks larger than they.

    weight_bytes(bound_plan)  # of one device, as the engine's allocator counts them

PyTorch hands out memory in blocks. An engine that forbids to split large ones while it loads (vLLM since 0.21) keeps
the rest of each block: 1.5 MiB of a 112.5 MiB tensor, and more where 16-bit weights are rounded to fp8 and tensors take
the blocks that wide ones left.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import NamedTuple

from ..base.cache import cache_by_identity
from ..base.symbols import Program, Value, evaluate, lift
from ..costs import parallelism
from ..costs.binding import BoundPlan
from ..costs.precision import ROLES
from ..costs.roofline import weight_sum
from ..network.graph import Block, Model
from ..network.operators import Op
from ..specs.structs import ExpertKernel, Plan

_UNIT_BYTES = dict.fromkeys([*(f"{role}_weight_bytes" for role in ROLES), "act_bytes", "norm_bytes"], 1.0)
ALONE = {"tp": 1, "ep": 1, "ep_spread": 0, "moe_tp": 1, "sp": 1, "dp": 1, "dcp": 1, "a2a": 1, "gathered": 0}

MIB = 2**20
_ROUNDED = 2 * MIB  # blocks from 10 MiB on are whole multiples of this
_FROM = 10 * MIB
_SPARE = 20 * MIB  # a free block serves a large tensor if it is larger by less than this
_ROLE_BYTES = [f"{role}_weight_bytes" for role in ROLES]
_EXPERT_SIZES = ("experts", "hidden", "inner", "matrices")
_LAYERS = 4  # of equal ones that are loaded one by one; those after them take what the last of them took


def weight_bytes(bound_plan: BoundPlan) -> Value:
    """Weights kept on one device; what is offloaded to the host is not."""
    env, engine, model = bound_plan.env, bound_plan.engine, bound_plan.model
    table = model.sizes.get("rope_elements", 0.0) * engine.rope_table_bytes
    if not engine.max_split_size:
        return (weight_sum(model.blocks, env, "stored") + table) * (1 - env["offload_share"])
    quantization = bound_plan.plan.quantization
    loading = Loading(
        max_split_size=engine.max_split_size,
        table=table,
        online=quantization in engine.online_quantization and quantization not in model.quantization.values(),
        kernel=expert_kernel(bound_plan),
        wide=float(env["act_bytes"]),
        narrow=tuple(map(env.__getitem__, _ROLE_BYTES)),
    )
    figures = tuple([tuple(_figures(block)({**env, **block.dims})) for block in model.blocks])
    return _loaded(model.blocks, figures, loading) * (1 - env["offload_share"])


def expert_kernel(bound_plan: BoundPlan) -> ExpertKernel | None:
    """The kernel that the engine takes for these experts, where it keeps them in a way of its own."""
    for kernel in bound_plan.engine.expert_kernels:
        if (
            kernel.precision == bound_plan.plan.quantization
            and bound_plan.device.architecture in kernel.architectures
            and kernel.moe_backend in ("", bound_plan.engine.moe_backend)
        ):
            return kernel
    return None


def parameters(model: Model, field: str = "params") -> float:
    """Parameters of the whole network, or with ``field="active"`` those that one token multiplies by."""
    return float(weight_sum(model.blocks, ALONE, field))


def active_parameters(model: Model) -> float:
    """Parameters that a token uses, as publishers count them: all of a dense model, the input embedding included.

    A mixture's are without the experts that a token does not choose, and without a vision tower.
    """
    text = tuple(block for block in model.blocks if block.stage != "vision")
    idle = sum(
        block.count * float(evaluate(op.work.params - op.work.active, {**ALONE, **block.dims}))
        for block in text
        for op in block.ops
        if op.kind == "moe"
    )
    return float(weight_sum(text, ALONE, "params")) - idle if idle else parameters(model)


def parameters_by_op(model: Model, plan: Plan | None = None) -> dict[str, float]:
    """Parameters of every operator by name, over all layers: ``parameters_by_op(model)["down_proj"]``

    With a ``plan`` those that one GPU of it keeps (the model may be a pipeline stage's).
    """
    amounts: dict[str, float] = {}
    layout = {**ALONE, **_UNIT_BYTES, **(parallelism.layout_env(plan, model) if plan else {})}
    for block in model.blocks:
        env = {**layout, **block.dims}
        for op in block.ops:
            amount = float(evaluate(op.work.params, env)) * block.count
            if plan is not None and amount:  # what is stored, with a byte for each
                amount = float(evaluate(op.work.stored, env)) * block.count
            if amount:
                amounts[op.name] = amounts.get(op.name, 0.0) + amount
    return amounts


class Loading(NamedTuple):
    """How weights come into memory, besides their sizes."""

    max_split_size: float
    table: float  # bytes of cosines and sines of all positions, which all layers share
    online: bool  # layers in 16 bits are rounded one by one
    kernel: ExpertKernel | None
    wide: float  # bytes of an element in 16 bits
    narrow: tuple[Value, ...]  # bytes of a weight, in the order of roles


class CachingAllocator:
    """PyTorch's allocator of large blocks that are not split: ``CachingAllocator(20 * MIB).allocate(113 * MIB)``"""

    def __init__(self, max_split_size: float, free: tuple[float, ...] = ()) -> None:
        self.max_split_size = max_split_size
        self.free = list(free)

    def allocate(self, size: float) -> float:
        """The block that a tensor gets: the smallest free one that is not much larger, else a new one."""
        if size < self.max_split_size:
            return _whole(size)
        fitting = [block for block in self.free if size <= block < size + _SPARE]
        if not fitting:
            return _whole(size)
        block = min(fitting)
        self.free.remove(block)
        return block

    def release(self, block: float) -> None:
        """The block is free for other tensors."""
        if block >= self.max_split_size:
            self.free.append(block)


def _whole(size: float) -> float:
    return size if size < _FROM else math.ceil(size / _ROUNDED - 1e-9) * _ROUNDED


@cache_by_identity(2000)
def _figures(block: Block) -> Program:
    """Bytes of every operator's weights, then the sizes of experts."""
    experts = [op.dims[name] for op in block.ops if op.kind == "moe" for name in _EXPERT_SIZES]
    return Program([lift(figure) for figure in (*(op.work.stored for op in block.ops), *experts)])


@cache_by_identity(500)
def _loaded(blocks: tuple[Block, ...], figures: tuple[tuple[Value, ...], ...], loading: Loading) -> float:
    """Blocks of all tensors, layer by layer.

    Before the first layer, the tables' angles, cosines and sines in fp32 were there: two blocks of a table's size and
    one of twice that are free.
    """
    table = loading.table
    allocator = CachingAllocator(loading.max_split_size, (table, table, 2 * table))
    total = _whole(table)
    for block, sizes in zip(blocks, figures, strict=True):
        experts = iter(sizes[len(block.ops) :])
        tensors = [
            _tensors(op, size, tuple(islice(experts, len(_EXPERT_SIZES))) if op.kind == "moe" else (), loading)
            for op, size in zip(block.ops, sizes, strict=False)
        ]
        layer = 0.0
        for _ in range(min(block.count, _LAYERS)):
            layer = sum(_load(op_tensors, allocator) for op_tensors in tensors)
            total += layer
        total += layer * max(0, block.count - _LAYERS)
    return total


class Tensors(NamedTuple):
    """The tensors of one operator, and those in 16 bits that they are rounded from while the engine loads them."""

    kept: list[float]
    wide: list[float]


def _tensors(op: Op, size: float, expert_sizes: tuple[float, ...], loading: Loading) -> Tensors:
    """Values and scales of groups are apart."""
    per_weight = float(loading.narrow[ROLES.index(op.role)]) if op.role in ROLES else loading.wide
    values = 2.0 ** math.floor(math.log2(per_weight)) / per_weight
    whole = _expert_tensors(size, per_weight, expert_sizes, loading) if expert_sizes else [size]
    kept = [tensor * part for tensor in whole for part in ((values, 1 - values) if values < 1 else (1.0,))]
    online = loading.online and per_weight < loading.wide
    return Tensors(kept, [tensor * loading.wide / per_weight for tensor in kept] if online else [])


def _expert_tensors(size: float, per_weight: float, sizes: tuple[float, ...], loading: Loading) -> list[float]:
    """What goes into the experts, what comes out, and their biases."""
    count, hidden, inner, matrices = sizes
    product = count * hidden * inner * per_weight
    biases, kernel = max(0.0, size - matrices * product), loading.kernel
    if kernel is not None:
        product *= math.ceil(hidden / kernel.hidden) * kernel.hidden / hidden
        product *= math.ceil(inner / kernel.inner) * kernel.inner / inner
        biases *= (kernel.bias_bytes or loading.wide) / loading.wide
    return [(matrices - 1) * product, product, biases]


def _load(tensors: Tensors, allocator: CachingAllocator) -> float:
    """Blocks that an operator's tensors keep."""
    wide = [allocator.allocate(size) for size in tensors.wide]
    kept = sum(allocator.allocate(size) for size in tensors.kept)
    for block in wide:
        allocator.release(block)
    return kept
