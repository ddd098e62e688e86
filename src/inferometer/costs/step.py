"""A step of the engine as a few sums over its sequences, and a workload as the steps that an engine runs.

    Step((Group(8, new=1024),)).sums({"": Span()})["prefill_qk"]      # query-key pairs of 8 prompts
    prefill(8, 1024, budget=2048)                                     # [(a step of two prompts, 4 times)]
    decode(8, 1024, output=128)                                       # the mean step of the answers

With q new and c cached tokens per sequence: tokens = Σq, seqs = n, kv = what is read of the cache,
qk = Σ(q·c + q(q+1)/2) pairs of query and key, and logits = rows that need the LM head. Prefill, decode, chunked mixes
and speculative verification are all just groups of sequences. Every number may be an array, so that the steps of a
million workloads are one call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..base.symbols import Value, maximum_of, minimum_of, scalar
from ..network.graph import Model, Span

# Nodes on [-1, 1] and weights (that sum to 1) of Gauss-Legendre quadrature of order three.
_GAUSS = ((-0.7745966692414834, 5 / 18), (0.0, 8 / 18), (0.7745966692414834, 5 / 18))


class Group(NamedTuple):
    """``seqs`` equal sequences: ``Group(8, new=1024, cached=0, logits=1)`` is the prefill of 8 prompts."""

    seqs: Value
    new: Value
    cached: Value = 0
    logits: Value = 1  # rows of each sequence that need the LM head
    decode: bool = False


def query_key_pairs(span: Span, n: Value) -> Value:
    """Query-key pairs of the first n positions under the mask: ``query_key_pairs(Span(), 3)  # 6.0``"""
    if span.kind == "chunk":
        chunks = n // span.size
        rest = n - chunks * span.size
        return (chunks * span.size * (span.size + 1) + rest * (rest + 1)) / 2
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
    """The images of a step: how many, patches in all, Σ patches² and the tokens they become."""

    count: Value = 0
    patches: Value = 0
    pairs: Value = 0
    tokens: Value = 0


class Step(NamedTuple):
    """What the engine runs at once."""

    groups: tuple[Group, ...]
    images: Images = Images()
    in_a_row: Value = 1.0  # equal steps that follow each other: they keep the chip hot

    def sums(self, spans: dict[str, Span]) -> dict[str, Value]:
        """The named sums that formulas use, for the spans that a model has."""
        suffixed = {f"_{key}" if key else "": span for key, span in spans.items()}
        sums: dict[str, Any] = {"tokens": 0.0, "seqs": 0.0, "logits": 0.0}
        for phase in ("prefill", "decode"):
            sums |= {f"{phase}_tokens": 0.0, f"{phase}_seqs": 0.0, f"{phase}_dense": 0.0}
            for suffix in suffixed:
                sums[f"{phase}_qk{suffix}"] = sums[f"{phase}_kv{suffix}"] = 0.0
        for group in self.groups:
            phase = "decode" if group.decode else "prefill"
            n, q, c = group.seqs, group.new, group.cached
            sums["tokens"] += n * q
            sums["seqs"] += n
            sums["logits"] += n * group.logits
            sums[f"{phase}_tokens"] += n * q
            sums[f"{phase}_seqs"] += n
            sums[f"{phase}_dense"] += n * q * (c + q)
            for suffix, span in suffixed.items():
                sums[f"{phase}_qk{suffix}"] += n * (query_key_pairs(span, c + q) - query_key_pairs(span, c))
                sums[f"{phase}_kv{suffix}"] += n * entries_read(span, c, q)
        sums["in_a_row"] = self.in_a_row
        sums |= {"images": self.images.count, "patches": self.images.patches}
        sums |= {"patch_pairs": self.images.pairs, "image_tokens": self.images.tokens}
        return sums


Steps = list[tuple[Step, Value]]  # steps, and how often each of them runs


def prefill(batch: Value, new: Value, cached: Value = 0, *, budget: Value) -> Steps:
    """The prompts of ``batch`` sequences, ``new`` tokens each after ``cached`` ones, at most ``budget`` tokens a step.

    The prompts are laid end to end and cut every ``budget`` tokens: some full steps, and a last one with the rest. All
    full steps are represented by their mean, which has the same tokens and the mean context of their queries; that is
    exact where attention's cost is linear in the context. If the rest is less than a prompt, the last prompt is cut in
    two: its head runs in the full steps, its tail is the last step. Tokens, query-key pairs and logits of all steps add
    up to those of the prompts, whatever the budget.

    Three prompts of 1,000 tokens with a budget of 2,048 are one full step (two prompts, and a head of 48 tokens) and a
    last step of 952 tokens after 48 cached ones:

        prefill(3, 1000, budget=2048)
        # [(Step((Group(2, 1000, 0, logits=1), Group(1, 48, 0, logits=0))), 1), (Step((Group(1, 952, 48),)), 1)]
    """
    total = batch * new
    full_steps = total // budget
    rest = total - full_steps * budget
    has_rest = rest > 0
    is_cut = has_rest * 1.0 * (rest < new)  # 1 where the last prompt is cut in two
    head = is_cut * (new - rest)  # its tokens in the full steps
    whole_prompts = is_cut * (batch - 1) + (1 - is_cut) * full_steps * budget / new  # other prompts in the full steps
    # One full step runs `chunk` tokens of a prompt, so a prompt takes new / chunk steps; likewise the head.
    chunk, head_chunk = minimum_of(new, budget), minimum_of(maximum_of(head, 1), budget)
    divisor = maximum_of(full_steps, 1)  # the mean over no step is not used, but must not divide by 0
    full = Step(
        (
            Group(whole_prompts * new / chunk / divisor, chunk, cached + (new - chunk) / 2, chunk / new),
            Group(head / head_chunk / divisor, head_chunk, cached + (head - head_chunk) / 2 * is_cut, 0),
        ),
        in_a_row=full_steps + has_rest,
    )
    tail = minimum_of(new, maximum_of(rest, 1))  # tokens of each prompt in the last step
    last = Step((Group(rest / tail, tail, cached + new - tail),), in_a_row=full_steps + 1)
    steps: Steps = [(full, full_steps * 1.0), (last, has_rest * 1.0)]
    return [(step, often) for step, often in steps if not scalar(often) or often > 0]


def decode(batch: Value, context: Value, output: Value) -> Step:
    """One step at the mean context of output tokens 2..N: ``decode(8, 1024, 128)``"""
    return Step((Group(batch, 1, context + maximum_of(output - 2, 0) / 2, 1, True),))


def decode_quadrature(model: Model, batch: Value, context: Value, output: Value) -> Steps:
    """Steps and weights whose weighted sum of seconds is that of the mean decode step of output tokens 2..N.

    With full attention the cost is linear in the context, and one step at the mean context is exact. A window or top-k
    makes it bend; Gauss-Legendre quadrature with three nodes then integrates over the contexts of the answer.
    """
    if all(span.size == float("inf") for span in model.spans.values()):
        return [(decode(batch, context, output), 1.0)]
    half_range = maximum_of(output - 2, 0) / 2
    middle = context + half_range
    return [(Step((Group(batch, 1, middle + x * half_range, 1, True),)), weight) for x, weight in _GAUSS]
