"""Arrays of steps of which few differ in their tokens: what depends on nothing else is priced once for each number.

A grid of 250 batch sizes and 250 lengths has 62,500 prefills, but no more different last steps than a step may have
tokens; products, norms and experts know nothing but these. Only attention and the head see every point.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..base.cache import cache_by_identity
from ..base.symbols import Env, Value, free_names, scalar
from ..network.graph import Block
from ..network.operators import WORK_FIELDS, Op

LARGE = 4096  # points, below which looking for equals costs more than it saves
_MOST = 2**22  # tokens of a step, above which a table of all numbers is too long
_COUNTS = frozenset({"tokens", "moe_tokens"})


class UniqueTokens(NamedTuple):
    """The names of some steps with every number of tokens once, and which of them each point has."""

    env: dict[str, Value]
    which: Any

    def unfold(self, value: Value) -> Value:
        """What was computed per number of tokens, per point."""
        return value if scalar(value) else value[self.which]


def dedup_by_tokens(env: Env) -> UniqueTokens | None:
    """The names of many steps, folded; None where they are few, or differ in more than their steps' sums."""
    tokens = env["tokens"]
    if scalar(tokens) or tokens.size < LARGE:
        return None
    if not all(scalar(value) or _of_step(name) for name, value in env.items()):
        return None
    import numpy as np

    nearest = np.rint(tokens)
    if np.abs(tokens - nearest).max() > 1e-6 or nearest.min() < 0 or nearest.max() > _MOST:
        return None
    index = nearest.astype(np.intp)
    there = np.zeros(int(index.max()) + 1, bool)
    there[index] = True
    each = np.flatnonzero(there)
    if 2 * len(each) > tokens.size:
        return None
    counts = each.astype(float)
    return UniqueTokens({**env, "tokens": counts, "moe_tokens": counts * env["dp"]}, (np.cumsum(there) - 1)[index])


def _of_step(name: str) -> bool:
    return name in ("tokens", "moe_tokens", "seqs", "logits", "in_a_row") or name.startswith(("prefill_", "decode_"))


@cache_by_identity(2000)
def split_token_only_ops(block: Block) -> tuple[Block, Block]:
    """A block with the operators that know only how many tokens there are, and with all others.

    Operators that run beside each other stay together.
    """
    light = [op for op in block.ops if _step_names(op) <= _COUNTS]
    names = {op.name for op in light}
    torn = {
        word
        for op in block.ops
        if op.side_stream_of and (op.name in names) != (op.side_stream_of in names)
        for word in (op.name, op.side_stream_of)
    }
    light = [op for op in light if op.name not in torn]
    rest = tuple(op for op in block.ops if not any(op is other for other in light))
    return msgspec.structs.replace(block, ops=tuple(light)), msgspec.structs.replace(block, ops=rest)


def _step_names(op: Op) -> set[str]:
    """The names of a step in an operator's formulas and in its kernel's shape."""
    formulas = [*(getattr(op.work, field) for field in WORK_FIELDS), *op.dims.values()]
    return {word for formula in formulas for word in free_names(formula) if _of_step(word)}
