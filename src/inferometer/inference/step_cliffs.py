"""Cliffs of a step: limits of an engine at which answers become many times slower, with the flag that mends each.

    budget_cliff(engine, plan, prompt_tokens=8192, seqs=64)
    graph_cliff(bound_plan, seqs=600, context=1024)

Both give a sentence, or '' where there is no cliff.
"""

from __future__ import annotations

import math

import msgspec

from ..base.units import seconds
from ..costs.binding import BoundPlan, step_seconds
from ..costs.step import Group, Step
from ..specs.arguments import flag
from ..specs.structs import Engine, Plan

WORTH_A_WORD = 1.1  # times as long as without the cliff
WHOLE_PROMPTS = ("trtllm",)  # schedulers that compute a prompt whole, beside everything that decodes


def tokens_per_decode(plan: Plan) -> int:
    """Tokens of a step's budget that one decoding sequence takes: more than one where tokens are drafted."""
    return 1 + (plan.speculation.num_speculative_tokens if plan.speculation is not None else 0)


def seqs_beside(plan: Plan, prompt_tokens: float) -> int:
    """Sequences that may decode in the step that computes a whole prompt: what the prompt leaves of the budget."""
    return int(max(plan.max_num_batched_tokens - prompt_tokens, 0) // tokens_per_decode(plan))


def budget_cliff(engine: Engine, plan: Plan, prompt_tokens: float, seqs: float, scheduler: str = "") -> str:
    """A prompt that fits into a step only while few decode, where prompts are not cut: the others wait for them to end.

    ``seqs``: sequences that would run at once if the budget did not hold them back, the prompt's own among them.
    """
    if (scheduler or engine.scheduler) not in WHOLE_PROMPTS or prompt_tokens > plan.max_num_batched_tokens:
        return ""  # a prompt above the budget is cut, and so fits beside anything
    beside = seqs_beside(plan, prompt_tokens)
    if seqs < 2 or 2 * (beside + 1) > seqs:
        return ""
    needed = prompt_tokens + (seqs - 1) * tokens_per_decode(plan)
    enough = 2 ** math.ceil(math.log2(needed))
    company = f"while at most {beside} sequences decode" if beside else "while nothing decodes"
    return (
        f"a prompt of {prompt_tokens:,.0f} tokens fits into a step's {plan.max_num_batched_tokens:,} only {company}, "
        f"so about {beside + 1} of {seqs:,.0f} requests run at a time: {flag('max_num_batched_tokens')} {enough} has "
        "room for all"
    )


def graph_cliff(bound_plan: BoundPlan, seqs: float, context: float) -> str:
    """More decoding sequences than the largest captured CUDA graph has room for: the host launches every kernel.

    Said only where it makes the step slower by WORTH_A_WORD, which is tried out.
    """
    engine, plan = bound_plan.engine, bound_plan.plan
    tokens = seqs * tokens_per_decode(plan)
    if not engine.graph_tokens or tokens <= engine.graph_tokens:
        return ""
    enough = 2 ** math.ceil(math.log2(tokens))
    step = Step((Group(seqs, tokens_per_decode(plan), context, tokens_per_decode(plan), True),))
    larger = msgspec.structs.replace(engine, graph_tokens=enough)
    took, captured = (float(step_seconds(bound_plan._replace(engine=one), step)) for one in (engine, larger))
    if took < captured * WORTH_A_WORD:
        return ""
    fewer = max(1, engine.graph_tokens // tokens_per_decode(plan))
    return (
        f"{seqs:,.0f} sequences decode beyond the largest captured CUDA graph ({engine.graph_tokens:,} tokens): the "
        f"host launches every kernel, and a step takes {seconds(took)} instead of {seconds(captured)}; "
        f"{flag('max_cudagraph_capture_size')} {enough}, or {flag('max_num_seqs')} {fewer}"
    )
