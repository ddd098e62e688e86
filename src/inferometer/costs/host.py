"""What engine and chip add to a step's kernels: padding to captured graphs, launches that come late, falling clocks.

Kernels run in a queue; the host fills it. While it is ahead nobody sees it: a step takes the longer of the two. Decode
steps are replayed as one graph, prefills of up to ``graph_tokens`` as pieces between attentions, larger ones are
launched kernel by kernel.
"""

from __future__ import annotations

from ..base.cache import cache_by_identity
from ..base.symbols import Env, Value, ceil_of, exp, maximum_of, scalar
from ..network.graph import Block, Model
from ..specs.structs import Engine

ATTENTION = ("prefill_attention", "decode_attention", "scan")
_USUAL = "other"  # the entry of `launch` for kinds that have none


def padded_tokens(engine: Engine, tokens: Value) -> Value:
    """Tokens that a step computes: up to the next size that was captured as a graph, ``padded(vllm, 33)  # 40``"""
    if scalar(tokens):
        for upto, by in engine.graph_sizes:
            if tokens <= upto:
                return by * ceil_of(tokens / by)
        return tokens
    import numpy as np

    cases = [tokens <= upto for upto, _ in engine.graph_sizes]
    return np.select(cases, [by * np.ceil(tokens / by) for _, by in engine.graph_sizes], tokens) if cases else tokens


@cache_by_identity(64)
def _launches(blocks: tuple[Block, ...], *launch: tuple[str, float]) -> tuple[float, float]:
    """Host seconds to launch all kernels of a step, and those between the pieces of a graph."""
    pieces = whole = 0.0
    known = dict(launch)
    for block in blocks:
        if block.stage == "vision":
            continue
        for op in block.ops:
            each = known.get(op.kind, known.get(_USUAL, 0.0))
            if op.kind in ATTENTION:
                # prompts and decoding sequences share one call; the graph has an operator for each
                pieces += block.count * each * (op.kind != "decode_attention")
            else:
                whole += block.count * each * (op.calls if op.kind not in known else 1)
    return pieces + whole, pieces


def host_seconds(model: Model, engine: Engine, sums: Env, kernels: Value) -> Value:
    """Seconds that a step takes beyond its kernels."""
    everything, pieces = _launches(model.blocks, *engine.launch.items())
    large = sums["tokens"] > engine.graph_tokens
    prompts = sums["prefill_tokens"] > 0
    launching = large * everything + (1 - large) * prompts * pieces
    floor = launching + engine.step_floor + engine.step_floor_per_sequence * sums["seqs"]
    return engine.step_overhead + maximum_of(floor - kernels, 0.0) + throttle_seconds(sums, kernels)


def throttle_seconds(sums: Env, kernels: Value) -> Value:
    """Seconds that falling clocks add: prompts keep the matrix units busy until the power limit bites.

    The loss of speed grows to ``throttle`` with a time constant; ``in_a_row`` like steps follow each other. A chip that
    was busy before begins with a share ``heat`` of that loss.
    """
    if not sums["throttle"]:
        return 0.0
    busy = kernels * sums["prefill_tokens"] / maximum_of(sums["tokens"], 1)
    time = maximum_of(busy * sums["in_a_row"] / sums["throttle_after"], 1e-9)
    return sums["throttle"] * busy * (1 - (1 - sums.get("thermal_state", 0.0)) * (1 - exp(-time)) / time)
