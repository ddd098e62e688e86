"""A graph, taken apart by what its operators' times depend on: the tokens of a step, its logits, or its attention.

A simulated run asks for a million steps. Most operators of a step know only how many tokens there are, so their seconds
are one table; what is left is the attention of the prompts and of the answers, each a function of few sums. Which is
which is read off the names in the operators' formulas, never off a model's name.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..cost import FIELDS
from ..evaluate import Setup, bound
from ..graph import Block
from ..operators import Op
from ..steps import Group, Step
from ..symbols import Env, evaluate, words

Spans = tuple[str, ...]
_COUNTS = frozenset({"tokens", "moe_tokens"})
_STEP = frozenset({"seqs", "logits", "images", "patches", "patch_pairs", "image_tokens"}) | _COUNTS


class Parts(NamedTuple):
    """Blocks with only some of their operators, by what those depend on."""

    tokens: tuple[Block, ...]
    logits: tuple[Block, ...]
    prefill: dict[Spans, tuple[Block, ...]]  # attention of prompts, by the spans that it looks back over
    decode: dict[Spans, tuple[Block, ...]]
    other: tuple[Block, ...]  # several at once: a scan over a state, an index over both phases


def parts(setup: Setup) -> Parts:
    """Take the text blocks of a setup apart: ``parts(setup).decode[("",)]`` is full attention of answers."""
    found: dict[tuple[str, Spans], list[Block]] = {}
    windows = any(span.size != float("inf") for span in setup.model.spans.values())
    mixed = bool(setup.env["eager"]) and windows  # eager attention computes all pairs, but reads what a window has
    some = bound(setup, Step((Group(3, 5, 7), Group(2, 1, 11, 1, True))))
    for block in setup.text:
        mine: dict[tuple[str, Spans], list[Op]] = {}
        for op in block.ops:
            if not _works(op, {**some, **block.dims}):
                continue
            part = _part(op)
            mine.setdefault(("other", ()) if mixed and part[1] else part, []).append(op)
        for part, ops in mine.items():
            found.setdefault(part, []).append(msgspec.structs.replace(block, ops=tuple(ops)))

    def of(kind: str) -> dict[Spans, tuple[Block, ...]]:
        return {spans: tuple(blocks) for (word, spans), blocks in found.items() if word == kind}

    return Parts(tuple(found.get(("tokens", ()), ())), tuple(found.get(("logits", ()), ())), of("prefill"),
                 of("decode"), tuple(found.get(("other", ()), ())))  # fmt: skip


def _works(op: Op, names: Env) -> bool:
    """Whether an operator does anything on this layout: at tp 1 an all-reduce does not."""
    return any(evaluate(getattr(op.work, field), names) for field in FIELDS if field != "hops")


def _part(op: Op) -> tuple[str, Spans]:
    """What an operator depends on, and over which spans it looks back."""
    names = step_names(op)
    if names <= _COUNTS:
        return "tokens", ()
    if names <= {"logits"}:
        return "logits", ()
    for phase in ("prefill", "decode"):
        if all(word.startswith(phase) for word in names):
            tails = {word[len(phase) + 3 :] for word in names if word[len(phase) :][:3] in ("_qk", "_kv")}
            return phase, tuple(sorted(tail.removeprefix("_") for tail in tails))
    return "other", ()


def step_names(op: Op) -> frozenset[str]:
    """The step's names in an operator's work and in its shape."""
    formulas = [*(getattr(op.work, field) for field in FIELDS), *op.dims.values()]
    names = {word for formula in formulas for word in words(formula)}
    return frozenset(word for word in names if word in _STEP or word.startswith(("prefill_", "decode_")))


def answering(found: Parts) -> tuple[tuple[Block, ...], dict[Spans, tuple[Block, ...]]]:
    """What else a step of answers alone has: operators that know only their number, and, by spans, those of `other`
    that look back for both phases at once."""
    plain: list[Block] = [*found.tokens, *found.logits]
    shared: dict[Spans, tuple[Block, ...]] = {}
    for block in found.other:
        for op in block.ops:
            names = {word for word in step_names(op) if word[:9] in ("decode_qk", "decode_kv")}
            key = tuple(sorted(word[9:].removeprefix("_") for word in names))
            alone = msgspec.structs.replace(block, ops=(op,))
            if names:
                shared[key] = (*shared.get(key, ()), alone)
            else:
                plain.append(alone)
    return tuple(plain), shared
