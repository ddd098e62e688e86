"""Routed experts: stored by all, read by choice."""

from __future__ import annotations

from ...base.symbols import Formula, ceil, constant, minimum
from ...base.symbols import names as s
from .op import Op, Work, operator, role_bytes


def _touched(count: Formula, top_k: Formula, local_experts: Formula) -> Formula:
    """Experts of a rank that some token chose: of the rank that has most of them, since all wait for it.

    Of ``count`` experts ``T`` tokens choosing ``top_k`` each touch count·(1-(1-top_k/count)^T) on average; routing
    skew shrinks the number that is really in use. Of n experts a rank has t touched, and √(t·(1-t/n)) more or less by
    chance; the most that a rank has is ``ep_spread`` times that more.
    """
    in_use = top_k + (count - top_k) * (1 - s.routing_skew)
    usable = in_use * local_experts / count
    share = 1 - (1 - top_k / in_use) ** s.moe_tokens
    return usable * minimum(share + s.ep_spread * (share * (1 - share) / usable) ** 0.5, 1)


@operator("moe")
def experts(
    name: str,
    hidden: Formula,
    intermediate: Formula,
    *,
    count: Formula,
    top_k: Formula,
    gated: bool = True,
    bias: bool = False,
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """Routed experts: all are stored, those that some token chose are read.

    Routing skew loads the hottest of ``ep`` ranks by ep^skew. Experts are split over ``ep`` ranks (where they do not
    divide, this is a rank that has one more) and inside over ``moe_tp``; ``moe_tokens`` are those of all data-parallel
    ranks.
    """
    weight, inp, peak = role_bytes("experts")
    matrices = 3 if gated else 2
    products, biases = matrices * hidden * intermediate, (intermediate * (matrices - 1) + hidden) if bias else 0
    per_expert, expert_bytes = products + biases, products * weight + biases * s.act_bytes  # biases are not quantised
    local_experts = ceil(count / s.ep)
    touched = _touched(count, top_k, local_experts)
    rows = s.moe_tokens * top_k * local_experts / count * s.ep**s.routing_skew
    inner = intermediate / s.moe_tp
    return Op(
        name,
        "moe",
        Work(
            flops=2 * rows * matrices * hidden * inner,
            weights=touched * expert_bytes / s.moe_tp,
            reads=rows * (hidden * inp + (matrices - 1) * inner * s.act_bytes + inner * inp + hidden * s.act_bytes),
            writes=rows * (matrices * inner + hidden) * s.act_bytes + s.moe_tokens / s.ep * hidden * s.act_bytes,
            params=count * per_expert,
            active=top_k * per_expert,
            stored=local_experts * expert_bytes / s.moe_tp,
        ),
        {
            "tokens": s.moe_tokens,
            "hidden": hidden,
            "inner": inner,
            "experts": local_experts,
            "top_k": top_k,
            "matrices": constant(matrices),
            "touched": touched,
            "rows": rows,
            **({"biases": constant(1)} if bias else {}),
        },
        peak,
        inputs,
        rows * (matrices * inner + hidden) * s.act_bytes,
        {
            "input": (rows, hidden),
            "weight": (local_experts, hidden, matrices * inner),
            "output": (s.moe_tokens, hidden),
        },
        calls=4,
        role="experts",
    )
