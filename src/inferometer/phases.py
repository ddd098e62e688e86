"""From a workload to the steps that an engine runs: prefill in chunks of its token budget, then decoding.

Each phase is a list of (step, how often). Everything may be an array, so a million workloads are one call.
"""

from __future__ import annotations

from .graph import Model
from .steps import Group, Step
from .symbols import Value, least, most, scalar

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
    piece, start, times = least(new, budget), least(most(head, 1), budget), most(full, 1)
    last = least(new, most(rest, 1))
    whole = Step((
        Group(complete * new / piece / times, piece, cached + (new - piece) / 2, piece / new),
        Group(head / start / times, start, cached + (head - start) / 2 * split, 0),
    ), in_a_row=full + (rest > 0))  # fmt: skip
    left = Step((Group(rest / last, last, cached + new - last),), in_a_row=full + 1)
    steps: Steps = [(whole, full * 1.0), (left, (rest > 0) * 1.0)]
    return [(step, often) for step, often in steps if not scalar(often) or often > 0]


def decode(batch: Value, context: Value, output: Value) -> Step:
    """One step at the mean context of output tokens 2..N: ``decode(8, 1024, 128)``"""
    return Step((Group(batch, 1, context + most(output - 2, 0) / 2, 1, True),))


def decode_nodes(model: Model, batch: Value, context: Value, output: Value) -> Steps:
    """Steps whose weighted sum is the mean step of the answer; more than one only where cost is not linear in that."""
    if all(span.size == float("inf") for span in model.spans.values()):
        return [(decode(batch, context, output), 1.0)]
    middle, half = context + most(output - 2, 0) / 2, most(output - 2, 0) / 2
    return [(Step((Group(batch, 1, middle + x * half, 1, True),)), weight) for x, weight in _GAUSS]
