"""What a plan keeps on the fullest GPU for a workload, and how many sequences would fit: bytes, floats or arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from . import memory, timing
from .evaluate import Setup, stages
from .report import Memory
from .steps import Group, Images, Step
from .symbols import Value, chosen, least, most, scalar
from .talk import Talk, tower_step


class Footprint(NamedTuple):
    """Bytes on one GPU, of one workload or of an array of them."""

    weights: Value
    cache: Value
    live: Value  # activations
    reserve: float  # the engine's own
    usable: float

    @property
    def total(self) -> Value:
        """All of it."""
        return self.weights + self.cache + self.live + self.reserve


def footprint(setup: Setup, talk: Talk) -> Footprint:
    """Of the pipeline stage whose GPUs are fullest: ``footprint(setup, conversation(setup, work)).total``"""
    parts = [_stage(stage, talk) for stage in stages(setup)]
    fullest = parts[0]
    for part in parts[1:]:
        more = part.total > fullest.total
        fullest = Footprint(*(chosen(more, a, b) for a, b in zip(part, fullest, strict=True)))
    return fullest


def _stage(setup: Setup, talk: Talk) -> Footprint:
    more_weights, more_cache = drafter(setup, talk.length)
    cache = held(setup, talk, talk.output_len) * (1 - setup.env["kv_offload_share"]) + talk.sequences * more_cache
    return Footprint(memory.weight_bytes(setup) + more_weights, cache,
                     peak(setup, prompt_peaks(setup, talk) + answer_peaks(setup, talk), reserved(setup)),
                     setup.engine.memory_reserve, setup.device.memory * setup.plan.gpu_memory_utilization)  # fmt: skip


def reserved(setup: Setup) -> Value:
    """Activations that an engine sets aside by trying out its largest step, if it does."""
    return memory.activation_bytes(setup, memory.profiling_step(setup)) if setup.engine.profile_run else 0.0


def cache_of(setup: Setup, talk: Talk, length: Value) -> Value:
    """Cache of one sequence of ``length`` tokens, layer by layer where tokens are pruned."""
    if isinstance(talk.input_len, tuple):
        more = length - talk.context
        return sum(memory.cache_bytes(setup, n + more, (i,)) for i, n in enumerate(talk.input_len))
    return memory.cache_bytes(setup, length)


def held(setup: Setup, talk: Talk, answered: Value) -> Value:
    """Cache of a replica's sequences after some answer tokens; beams share the prompt's."""
    first, whole = cache_of(setup, talk, talk.context), cache_of(setup, talk, talk.context + answered)
    return talk.mine * first + talk.sequences * (whole - first)


def memory_table(setup: Setup, talk: Talk) -> Memory:
    """Of the pipeline stage whose GPUs are fullest; what fits must fit on every stage. All replicas count."""
    parts = [_stage_memory(stage, talk) for stage in stages(setup)]
    fullest = max(parts, key=lambda m: m.total_bytes)
    for word in ("max_batch_size", "max_batch_size_prefill", "max_batch_size_decode"):
        setattr(fullest, word, min(getattr(m, word) for m in parts))
    tokens = [m.max_total_tokens for m in parts if m.max_total_tokens is not None]
    fullest.max_total_tokens = min(tokens) if tokens else None
    return fullest


def prompt_peaks(setup: Setup, talk: Talk) -> list[Step]:
    """The steps of the prompts that may need the most memory: the largest one, and the images'."""
    if isinstance(talk.input_len, tuple):
        largest = Step((Group(talk.mine, max(talk.input_len), 0),))
    else:
        budget = timing.prefill_budget(setup, talk.mine * talk.prompt)
        largest = memory.longest_step(talk.mine, talk.prompt, talk.cached, budget=budget)
    return [largest, tower_step(talk)] if talk.images.count else [largest]


def answer_peaks(setup: Setup, talk: Talk) -> list[Step]:
    """The last step of the answers, if there are any."""
    if scalar(talk.output_len) and talk.output_len < 2:
        return []
    spec = setup.plan.speculation
    new = spec.num_speculative_tokens + 1 if spec else 1
    each = talk.sequences / timing.micro_batches(setup, talk.sequences) * (talk.output_len > 1)
    return [Step((Group(each, new, most(talk.length - new, 0), new, True),))]


def peak(setup: Setup, steps: list[Step], aside: Value = 0.0) -> Value:
    """The largest peak of some steps, or what is set aside anyway."""
    for step in steps:
        aside = most(aside, memory.activation_bytes(setup, step))
    return aside


def cache_offloaded(setup: Setup, talk: Talk) -> Setup:
    """The setup with its share of the cache in host memory: what --cpu-offload-gb leaves when all weights are there."""
    room = setup.env.get("host_cache_bytes", 0.0)
    if not room:
        return setup
    cache: Value = 0.0
    for stage in stages(setup):
        cache = most(cache, held(stage, talk, talk.output_len))
    return setup._replace(env={**setup.env, "kv_offload_share": least(1.0, room / most(cache, 1.0))})


def _stage_memory(setup: Setup, talk: Talk) -> Memory:
    replicas = setup.plan.data_parallel_size
    mine, aside = _stage(setup, talk), float(reserved(setup))
    _, more_cache = drafter(setup, talk.length)
    per_prompt, per_sequence = cache_of(setup, talk, talk.context), cache_of(setup, talk, talk.length) + more_cache
    each = per_prompt + talk.beams * (per_sequence - per_prompt)  # beams share the prompt's

    def prompts(batch: int) -> float:
        return float(peak(setup, prompt_peaks(setup, _scaled(talk, batch)), aside))

    def answers(batch: int) -> float:
        return float(peak(setup, answer_peaks(setup, _scaled(talk, batch)), aside))

    def both(batch: int) -> float:
        return max(prompts(batch), answers(batch))

    room = mine.usable - mine.weights - mine.reserve + setup.env.get("host_cache_bytes", 0.0)
    limit, per_token = setup.plan.max_model_len or talk.length, float(memory.kv_bytes_per_token(setup))
    # an engine that profiles sizes its cache by that run alone
    tokens = memory.max_total_tokens(setup, room - (aside or mine.live), limit) if per_token else None
    return Memory(
        weights_bytes=float(mine.weights),
        kv_cache_bytes=float(mine.cache),
        activation_bytes=float(mine.live),
        overhead_bytes=mine.reserve,
        total_bytes=float(mine.total),
        capacity_bytes=setup.device.memory,
        usable_bytes=mine.usable,
        kv_bytes_per_token=per_token,
        max_batch_size=_most(room, each, both) * replicas,
        max_batch_size_prefill=_most(room, per_prompt, prompts) * replicas,
        max_batch_size_decode=_most(room, each, answers) * replicas,
        max_total_tokens=_whole_blocks(setup, tokens) if tokens is not None and tokens < 1e18 else None,
    )


def _scaled(talk: Talk, batch: int) -> Talk:
    """The same talk of another number of sequences on this replica."""
    return talk._replace(mine=batch, images=Images(*(x * batch / talk.mine for x in talk.images)))


def drafter(setup: Setup, length: Value) -> tuple[Value, Value]:
    """Weights of the model that drafts, and its cache of a sequence of ``length`` tokens."""
    spec = setup.plan.speculation
    if spec is None or spec.method == "ngram":
        return 0.0, 0.0
    small = timing.draft_setup(setup)
    if spec.method == "mtp":  # embedding and head are the model's own
        only = tuple(b for b in small.model.blocks if b.stage == "mtp")
        small = small._replace(model=timing.only(small.model, only))
    return memory.weight_bytes(small), memory.cache_bytes(small, length)


def _most(room: float, each: float, live: Callable[[int], float]) -> int:
    """The largest batch whose caches and activations fit: found by halving, because activations stop growing."""
    free = room - live(1)
    low, high = 0, max(0, min(10**9, int(free // each))) if each > 0 else 10**9 if free >= 0 else 0
    if high and high * each + live(high) <= room:  # the usual case: activations that do not depend on it
        return high
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle * each + live(middle) <= room else (low, middle - 1)
    return low


def _whole_blocks(setup: Setup, tokens: float) -> int:
    """Engines hand out the cache in blocks; a rest that is less than one is no use."""
    block = setup.plan.block_size if setup.engine.profile_run else 1
    return int(tokens // block) * block
