"""Arrays of steps that share few numbers of tokens: what depends on the tokens alone is estimated once per number.

A grid of 250 batch sizes and 250 lengths has 62,500 prefills, but no more different last steps than a step may have
tokens. Matrix products, norms and experts depend on nothing but that number; attention and the head see every point.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..base.cache import cache_by_identity
from ..base.symbols import Env, Value, free_names, scalar
from ..network.graph import Block
from ..network.operators import WORK_FIELDS, Op

MIN_POINTS = 4096  # below this, looking for equal points costs more than it saves
_MAX_TOKENS = 2**22  # above this, a table of all numbers of tokens is too long
_TOKEN_NAMES = frozenset({"tokens", "moe_tokens"})


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
