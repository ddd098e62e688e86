"""The model that a training run trains: with multi-token-prediction modules, or frozen with low-rank adapters.

with_mtp(model, 1)                  # one more layer, and one more head with its loss, before the end
with_adapters(model, Lora(rank=32, targets=("qkv_proj",)))   # the weights are frozen, the adapters are trained
"""

from __future__ import annotations

import msgspec

from ..base.cache import cache_by_identity
from ..base.errors import BadValue
from ..base.symbols import constant
from ..network.adapters import DEFAULT_TARGETS, with_lora
from ..network.graph import Block, Model
from ..network.operators import Op
from ..specs.structs import Lora
from .backward import FROZEN


def with_mtp(model: Model, number: int) -> Model:
    """The model that also predicts ``number`` further tokens, each with a module, the shared head and a loss.

    More predictions than the model has modules run the last one again, as models with repeated modules do.
    """
    if not number:
        return model
    modules = [block for block in model.extras if block.stage == "mtp"]
    heads = [block for block in model.blocks if block.stage == "head" and any(op.name == "lm_head" for op in block.ops)]
    if not modules or not heads:
        raise BadValue(f"`mtp_num_layers` {number}: {model.name} has no multi-token-prediction modules")
    have = sum(block.count for block in modules)
    added = []
    for index in range(number):
        ops = modules[0].ops if index < have else _shared(modules[0].ops)
        added += [Block(f"mtp_{index}", ops, modules[0].dims, stage="head")]
        added += [msgspec.structs.replace(heads[0], name=f"mtp_head_{index}", ops=_shared(heads[0].ops))]
    return msgspec.structs.replace(model, blocks=(*model.blocks, *added), extras=())


@cache_by_identity(100)
def _shared(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Operators whose weights another block holds."""
    return tuple(
        msgspec.structs.replace(op, work=msgspec.structs.replace(op.work, stored=0, params=0, active=0)) for op in ops
    )


def with_adapters(model: Model, rank: int, targets: tuple[str, ...]) -> Model:
    """The model with adapters beside some of its products, all other weights frozen."""
    names = {op.name for block in model.blocks for op in block.ops if op.kind == "linear"}
    lora = Lora(rank=rank, targets=targets or tuple(name for name in DEFAULT_TARGETS if name in names))
    adapted = with_lora(model, lora)
    blocks = (msgspec.structs.replace(block, ops=_frozen(block.ops)) for block in adapted.blocks)
    return msgspec.structs.replace(adapted, blocks=tuple(blocks))


def _frozen(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    return tuple(op if "_lora_" in op.name else _marked(op) for op in ops)


def _marked(op: Op) -> Op:
    return msgspec.structs.replace(op, dims={**op.dims, FROZEN: constant(1)})
