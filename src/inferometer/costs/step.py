"""A step of the engine as a few sums over its sequences.

With q new and c cached tokens per sequence: tokens = Σq, seqs = n, kv = what is read of the cache,
qk = Σ(q·c + q(q+1)/2) pairs of query and key, and logits = rows that need the LM head. Prefill, decode, chunked mixes
and speculative verification are all just groups of sequences, and every figure may be an array.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..base.symbols import Value, maximum_of, minimum_of, scalar
from ..network.graph import Model, Span


class Group(NamedTuple):
    """``seqs`` sequences alike: ``Group(8, new=1024, cached=0, logits=1)`` is the prefill of 8 prompts."""

    seqs: Value
    new: Value
    cached: Value = 0
    logits: Value = 1  # rows of each sequence that need the LM head
    decode: bool = False


def query_key_pairs(span: Span, n: Value) -> Value:
    """Query-key pairs of the first n positions under the mask: ``pairs(Span(), 3)  # 6.0``"""
    if span.kind == "chunk":
        whole = n // span.size
        rest = n - whole * span.size
        return (whole * span.size * (span.size + 1) + rest * (rest + 1)) / 2
    if span.size == float("inf"):
        return n * (n + 1) / 2 / span.ratio
    reach = span.size * span.ratio
    near = minimum_of(n, reach)
    return (near * (near + 1) / 2 + (n - near) * reach) / span.ratio


def entries_read(span: Span, cached: Value, new: Value) -> Value:
    """Cache entries that one step of a sequence reads."""
    n = cached + new
    if span.kind == "window":
        return minimum_of(n, span.size + new - 1)
    if span.kind == "top_k":
        return minimum_of(n / span.ratio, new * span.size)
    if span.kind == "chunk":
        return n - cached // span.size * span.size
    return n / span.ratio


def cache_entries(span: Span, n: Value) -> Value:
    """Cache entries that n tokens of a sequence occupy."""
    return minimum_of(n, span.size) if span.kind in ("window", "chunk") else n / span.ratio


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
                found[f"{phase}_qk{tail}"] += n * (query_key_pairs(span, c + q) - query_key_pairs(span, c))
                found[f"{phase}_kv{tail}"] += n * entries_read(span, c, q)
        found["in_a_row"] = self.in_a_row
        found |= {"images": self.images.count, "patches": self.images.patches}
        found |= {"patch_pairs": self.images.pairs, "image_tokens": self.images.tokens}
        return found


def _tails(spans: dict[str, Span]) -> dict[str, Span]:
    return {f"_{key}" if key else "": span for key, span in spans.items()}


# ------------------------------------------------------------------ phases
# From a workload to the steps that an engine runs: prefill in chunks of its token budget, then decoding.
#
# Each phase is a list of (step, how often). Everything may be an array, so a million workloads are one call.


Steps = list[tuple[Step, Value]]
_GAUSS = ((-0.7745966692414834, 5 / 18), (0.0, 8 / 18), (0.7745966692414834, 5 / 18))


def prefill(batch: Value, new: Value, cached: Value = 0, *, budget: Value) -> Steps:
    """The prompts of ``batch`` sequences, at most ``budget`` tokens a step.

    Full steps are represented by their mean: the same tokens, and the mean context of their queries, which is exact
    where attention's cost is linear in the context. The last step is whatever is left; where it is less than a prompt,
    the head of that prompt stands in the full steps. So tokens, pairs and logits add up whatever the budget.
    """
    total = batch * new
    full = total // budget
    rest = total - full * budget
    split = (rest > 0) * 1.0 * (rest < new)
    head = split * (new - rest)
    complete = split * (batch - 1) + (1 - split) * full * budget / new
    piece, start, times = minimum_of(new, budget), minimum_of(maximum_of(head, 1), budget), maximum_of(full, 1)
    last = minimum_of(new, maximum_of(rest, 1))
    whole = Step(
        (
            Group(complete * new / piece / times, piece, cached + (new - piece) / 2, piece / new),
            Group(head / start / times, start, cached + (head - start) / 2 * split, 0),
        ),
        in_a_row=full + (rest > 0),
    )
    left = Step((Group(rest / last, last, cached + new - last),), in_a_row=full + 1)
    steps: Steps = [(whole, full * 1.0), (left, (rest > 0) * 1.0)]
    return [(step, often) for step, often in steps if not scalar(often) or often > 0]


def decode(batch: Value, context: Value, output: Value) -> Step:
    """One step at the mean context of output tokens 2..N: ``decode(8, 1024, 128)``"""
    return Step((Group(batch, 1, context + maximum_of(output - 2, 0) / 2, 1, True),))


def decode_quadrature(model: Model, batch: Value, context: Value, output: Value) -> Steps:
    """Steps whose weighted sum is the mean step of the answer; more than one only where cost is not linear in that."""
    if all(span.size == float("inf") for span in model.spans.values()):
        return [(decode(batch, context, output), 1.0)]
    middle, half = context + maximum_of(output - 2, 0) / 2, maximum_of(output - 2, 0) / 2
    return [(Step((Group(batch, 1, middle + x * half, 1, True),)), weight) for x, weight in _GAUSS]
