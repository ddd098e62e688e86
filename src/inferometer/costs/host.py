"""What engine and chip add to a step's kernels: padding to captured graphs, launches that come late, falling clocks.

Kernels run in a queue that the host fills. While the host is ahead of the device its work is hidden: a step takes the
longer of the two. Decode steps of up to ``graph_tokens`` tokens are replayed as one CUDA graph; steps with prompts of
up to ``prefill_graph_tokens`` as piecewise graphs, with the attention between them launched one by one; larger ones are
launched kernel by kernel, and so are those between two captured sizes where an engine does not pad. Planning a step
hides behind the step before it where the engine schedules asynchronously, and is added where it does not.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..base.cache import cache_by_identity
from ..base.symbols import Env, Value, ceil_of, exp, free_names, maximum_of, minimum_of, scalar, where
from ..network.graph import Block, Model
from ..specs.structs import Engine, GraphSizes

SHARED_CALL = "decode_attention"  # one call with the prompts' attention, although the model has an operator for each
# kinds that run between the pieces of a piecewise graph, and the field of `Launches` that counts them
BETWEEN_PIECES = {
    "prefill_attention": "between_pieces",
    "scan": "between_pieces",
    "conv1d": "prompts",
    "chunk_scan": "prompts",
    "state_update": "decoding",
}
ROUNDED_WRITE = "kv_write_rounded"  # the entry for writes to a cache of fewer bits, where an engine file has it
_OTHER = "other"  # the entry of `Engine.launch` for kinds that have none


def padded_tokens(engine: Engine, tokens: Value, prefill_tokens: Value = 0) -> Value:
    """Tokens that a step computes: up to the next captured graph size, ``padded_tokens(vllm, 33)  # 40``"""
    decode_sizes = _captured(engine.graph_sizes if engine.graph_padding else (), engine.graph_tokens)
    if engine.prefill_graph_sizes is None and engine.prefill_graph_tokens is None:
        return _up_to_size(decode_sizes, tokens)
    sizes = engine.graph_sizes if engine.prefill_graph_sizes is None else engine.prefill_graph_sizes
    limit = engine.graph_tokens if engine.prefill_graph_tokens is None else engine.prefill_graph_tokens
    prefill_sizes = _captured(sizes, limit)
    if scalar(prefill_tokens):
        return _up_to_size(prefill_sizes if prefill_tokens else decode_sizes, tokens)
    return where(prefill_tokens > 0, _up_to_size(prefill_sizes, tokens), _up_to_size(decode_sizes, tokens))


def _captured(sizes: GraphSizes, limit: int) -> GraphSizes:
    """The sizes up to a limit."""
    return tuple((min(upto, limit), by) for upto, by in sizes)


def _up_to_size(sizes: GraphSizes, tokens: Value) -> Value:
    """The next captured size; larger steps are as they are."""
    if scalar(tokens):
        for upto, by in sizes:
            if tokens <= upto:
                return min(upto, by * ceil_of(tokens / by))
        return tokens
    import numpy as np

    cases = [tokens <= upto for upto, _ in sizes]
    return (
        np.select(cases, [np.minimum(upto, by * np.ceil(tokens / by)) for upto, by in sizes], tokens)
        if cases
        else tokens
    )


def without_graphs(engine: Engine, tokens: Value, has_prompts: Value) -> Value:
    """Whether a step is launched kernel by kernel: ``without_graphs(vllm, 600, False)  # True``"""
    eager = tokens > engine.graph_tokens
    if not engine.graph_padding:
        whole = ceil_of(tokens)
        eager = eager | (_up_to_size(engine.graph_sizes, whole) != whole)
    if engine.prefill_graph_tokens is None:
        return eager
    return where(has_prompts, tokens > engine.prefill_graph_tokens, eager)


class Launches(NamedTuple):
    """Host seconds to launch the kernels of a step one by one, by the steps that have them."""

    in_graphs: float  # whatever piecewise graphs hold
    between_pieces: float  # attention: one call for prompts and decoding sequences
    prompts: float = 0.0  # between pieces, too: kernels that only prompts have
    decoding: float = 0.0  # and those that only decoding sequences have


@cache_by_identity(64)
def state_groups(blocks: tuple[Block, ...]) -> int:
    """Groups of recurrent layers that an engine keeps tables of blocks for, each as large as that of attention layers.

    vLLM puts layers of one kind into groups of equal size: with 27 Mamba layers and 4 that attend there are 7 and 1.
    For each it makes block tables, slots and the kernels' arguments anew in every step.
    """
    layers = {True: 0, False: 0}  # with a cache of tokens, or with a state alone
    for block in blocks:
        for op in block.ops:
            if op.cache is not None:
                layers[bool(free_names(op.cache.per_token))] += block.count
    attending, recurrent = layers[True], layers[False]
    least = min(attending or recurrent, recurrent)
    return -(-recurrent // (recurrent if recurrent < 1.5 * attending else least)) if recurrent else 0


def with_cache_launches(engine: Engine, rounded: bool) -> Engine:
    """The engine with its launches to write a KV cache: ``with_cache_launches(vllm, True).launch["kv_write"]``

    Where keys and values are rounded queries are, too, and scales are spread over the heads: more calls for each layer.
    """
    seconds = engine.launch.get(ROUNDED_WRITE)
    if not rounded or seconds is None:
        return engine
    return msgspec.structs.replace(engine, launch={**engine.launch, "kv_write": seconds})


@cache_by_identity(64)
def _launch_seconds(blocks: tuple[Block, ...], *launch: tuple[str, float]) -> Launches:
    seconds = dict.fromkeys(Launches._fields, 0.0)
    by_kind = dict(launch)
    for block in blocks:
        if block.stage == "vision":
            continue
        for op in block.ops:
            if op.kind == SHARED_CALL:
                continue
            key = op.name if op.name in by_kind else op.kind
            per_launch = by_kind.get(key, by_kind.get(_OTHER, 0.0))
            calls = op.calls if key not in by_kind and op.kind not in BETWEEN_PIECES else 1
            seconds[BETWEEN_PIECES.get(op.kind, "in_graphs")] += block.count * per_launch * calls
    return Launches(**seconds)


def launch_seconds(model: Model, engine: Engine) -> Launches:
    """Host seconds to launch the kernels of a step: ``launch_seconds(model, vllm).between_pieces``"""
    return _launch_seconds(model.blocks, *engine.launch.items())


def launching_and_planning(model: Model, engine: Engine, sums: Env, launch_s: Launches | None) -> tuple[Value, Value]:
    """Host seconds to launch a step's kernels, and to plan it."""
    launches = launch_s or launch_seconds(model, engine)
    has_prompts = sums["prefill_tokens"] > 0
    eager = without_graphs(engine, sums["tokens"], has_prompts)
    launching = eager * launches.in_graphs + (eager | has_prompts) * launches.between_pieces
    if launches.prompts:
        launching = launching + has_prompts * launches.prompts
    if launches.decoding:
        launching = launching + (eager | has_prompts) * (sums["decode_tokens"] > 0) * launches.decoding
    planning = engine.step_floor + engine.step_floor_per_sequence * sums["seqs"]
    if engine.step_floor_per_state_group:
        planning = planning + engine.step_floor_per_state_group * state_groups(model.blocks)
    return launching, planning


def busy_seconds(model: Model, engine: Engine, sums: Env, launch_s: Launches | None = None) -> Value:
    """Seconds that a step keeps the host busy, hidden or not: ``busy_seconds(model, vllm, step_env(plan, step))``"""
    launching, planning = launching_and_planning(model, engine, sums, launch_s)
    return launching + planning


def host_seconds(
    model: Model, engine: Engine, sums: Env, kernels: Value, launch_s: Launches | None = None, ahead: float = 0.0
) -> Value:
    """Seconds that a step takes beyond its kernels' ``kernels`` seconds.

    ``launch_s``: `launch_seconds` of the same model and engine, for callers that ask for many steps. ``ahead``: seconds
    before the step by which the host is free to launch it, while the device still computes the step before.
    """
    launching, planning = launching_and_planning(model, engine, sums, launch_s)
    if engine.async_scheduling:  # the next step is planned while this one runs
        launching, planning = launching + planning - ahead, 0.0
    late = maximum_of(launching - kernels, 0.0)
    # slower kernels hide behind the launches that they wait for
    slower = maximum_of(throttle_seconds(sums, kernels, planning + late), late)
    return engine.step_overhead + planning + slower


def throttle_seconds(sums: Env, kernels: Value, beyond: Value = 0.0) -> Value:
    """Seconds that falling clocks add: prompts keep the matrix units busy until the power limit lowers the clocks.

    The loss of speed after t busy seconds is ``throttle · (1 - (1 - thermal_state) · exp(-t / throttle_after))``: it
    grows to ``throttle``, and a chip that was busy before begins with a share ``thermal_state`` of it. Returned is its
    mean over ``in_a_row`` equal steps that follow each other. Answers go on for seconds: their steps lose all
    of it where they take no more than ``hot_seconds`` a token, and with the cube of that share where they take more,
    what they wait for the host ``beyond`` their kernels included; or, if that is more, ``cooling`` times the state that
    prompts have left.
    """
    if not sums["throttle"]:
        return 0.0
    busy = kernels * sums["prefill_tokens"] / maximum_of(sums["tokens"], 1)
    time = maximum_of(busy * sums["in_a_row"] / sums["throttle_after"], 1e-9)  # in time constants
    state = 1 - (1 - sums.get("thermal_state", 0.0)) * (1 - exp(-time)) / time
    rest = kernels - busy
    hot = sums["decode_tokens"] * sums["hot_seconds"] / maximum_of(rest + beyond, 1e-9)
    decodes = maximum_of(sums["throttle"] * minimum_of(hot, 1.0) ** 3, sums["cooling"] * state)
    return sums["throttle"] * busy * state + rest * decodes
