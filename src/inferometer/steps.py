"""A step of the engine as a few sums over its sequences.

With q new and c cached tokens per sequence: tokens = Σq, seqs = n, kv = what is read of the cache,
qk = Σ(q·c + q(q+1)/2) pairs of query and key, and logits = rows that need the LM head. Prefill, decode, chunked mixes
and speculative verification are all just groups of sequences, and every figure may be an array.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .graph import Span
from .symbols import Value, least


class Group(NamedTuple):
    """``seqs`` sequences alike: ``Group(8, new=1024, cached=0, logits=1)`` is the prefill of 8 prompts."""

    seqs: Value
    new: Value
    cached: Value = 0
    logits: Value = 1  # rows of each sequence that need the LM head
    decode: bool = False


def pairs(span: Span, n: Value) -> Value:
    """Query-key pairs of the first n positions under the mask: ``pairs(Span(), 3)  # 6.0``"""
    if span.kind == "chunk":
        whole = n // span.size
        rest = n - whole * span.size
        return (whole * span.size * (span.size + 1) + rest * (rest + 1)) / 2
    if span.size == float("inf"):
        return n * (n + 1) / 2 / span.ratio
    reach = span.size * span.ratio
    near = least(n, reach)
    return (near * (near + 1) / 2 + (n - near) * reach) / span.ratio


def touched(span: Span, cached: Value, new: Value) -> Value:
    """Cache entries that one step of a sequence reads."""
    n = cached + new
    if span.kind == "window":
        return least(n, span.size + new - 1)
    if span.kind == "top_k":
        return least(n / span.ratio, new * span.size)
    if span.kind == "chunk":
        return n - cached // span.size * span.size
    return n / span.ratio


def kept(span: Span, n: Value) -> Value:
    """Cache entries that n tokens of a sequence occupy."""
    return least(n, span.size) if span.kind in ("window", "chunk") else n / span.ratio


class Images(NamedTuple):
    """The pictures of a step: how many, patches in all, Σ patches² and the tokens they become."""

    count: Value = 0
    patches: Value = 0
    pairs: Value = 0
    tokens: Value = 0


class Step(NamedTuple):
    """What the engine runs at once."""

    groups: tuple[Group, ...]
    images: Images = Images()
    in_a_row: Value = 1.0  # like steps that follow each other: they keep the chip hot

    def sums(self, spans: dict[str, Span]) -> dict[str, Value]:
        """The named sums that formulas use, for the spans that a model has."""
        found: dict[str, Any] = {"tokens": 0.0, "seqs": 0.0, "logits": 0.0}
        for phase in ("prefill", "decode"):
            found |= {f"{phase}_{word}": 0.0 for word in ("tokens", "seqs", "dense")}
            for tail in _tails(spans):
                found[f"{phase}_qk{tail}"] = found[f"{phase}_kv{tail}"] = 0.0
        for group in self.groups:
            phase = "decode" if group.decode else "prefill"
            n, q, c = group.seqs, group.new, group.cached
            found["tokens"] += n * q
            found["seqs"] += n
            found["logits"] += n * group.logits
            found[f"{phase}_tokens"] += n * q
            found[f"{phase}_seqs"] += n
            found[f"{phase}_dense"] += n * q * (c + q)
            for tail, span in _tails(spans).items():
                found[f"{phase}_qk{tail}"] += n * (pairs(span, c + q) - pairs(span, c))
                found[f"{phase}_kv{tail}"] += n * touched(span, c, q)
        found["in_a_row"] = self.in_a_row
        found |= {"images": self.images.count, "patches": self.images.patches}
        found |= {"patch_pairs": self.images.pairs, "image_tokens": self.images.tokens}
        return found


def _tails(spans: dict[str, Span]) -> dict[str, Span]:
    return {f"_{key}" if key else "": span for key, span in spans.items()}
