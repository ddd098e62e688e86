"""A workload as one prompt and one answer, and the time of each: what reports and explanations are computed for."""

from __future__ import annotations

from typing import NamedTuple

from . import phases, timing
from .evaluate import Setup, stages, step_rows, tower_rows
from .images import images
from .spec import Workload
from .steps import Group, Images, Step
from .symbols import Value


class Talk(NamedTuple):
    """Counts of one data-parallel replica, unless said; each may be an array (``input_len`` of numbers)."""

    batch: Value  # sequences of all replicas
    mine: Value  # sequences of the fullest replica
    beams: int
    input_len: Value | tuple[int, ...]
    prompt: Value  # new tokens of the longest layer, images included
    cached: Value
    output_len: Value
    images: Images = Images()

    @property
    def sequences(self) -> Value:
        """Sequences that decode at once on a replica, beams included."""
        return self.mine * self.beams

    @property
    def context(self) -> Value:
        """Tokens of a sequence when its answer begins."""
        return self.cached + self.prompt

    @property
    def length(self) -> Value:
        """Tokens of a finished sequence."""
        return self.context + self.output_len


def conversation(setup: Setup, work: Workload) -> Talk:
    """The last turn of a conversation, or the only one."""
    pictures, shown = Images(), work.images
    if shown and setup.model.vision:
        pictures = images(setup.model.vision, shown.height, shown.width, shown.count)
    seen = int(pictures.tokens)
    if work.turns:
        *before, last = work.turns
        new, cached, output = last.input_len, sum(t.input_len + t.output_len for t in before), last.output_len
        if before:  # images come with the first prompt and are in the cache by now
            cached, pictures = cached + seen, Images()
        else:
            new += seen
        lengths: int | tuple[int, ...] = last.input_len
    else:
        longest = work.input_len if isinstance(work.input_len, int) else max(work.input_len)
        new, cached, output = longest + seen - work.prefix_len, work.prefix_len, work.output_len
        lengths = work.input_len
    mine = -(-work.batch_size // setup.plan.data_parallel_size)
    scaled = Images(*(mine * x for x in pictures))
    output = output if setup.model.kind == "decoder" else 0
    return Talk(work.batch_size, mine, work.beam_width, lengths, new, cached, output, scaled)


def prefill_steps(setup: Setup, talk: Talk) -> list[tuple[Step | list[Step], float]]:
    """The steps of the prompts and how often each runs; a list of steps is one per layer (token pruning)."""
    if isinstance(talk.input_len, tuple):
        return [([Step((Group(talk.mine, n, 0),)) for n in talk.input_len], 1.0)]
    return list(timing.prefill_steps(setup, talk.mine, talk.prompt, talk.cached))


def decode_step(setup: Setup, talk: Talk) -> Step | list[Step]:
    """One step at the mean context of the answer: of a micro-batch, and of a verification if tokens are drafted."""
    if isinstance(talk.input_len, tuple):
        return [phases.decode(talk.sequences, n, talk.output_len) for n in talk.input_len]
    each = talk.sequences / timing.micro_batches(setup, talk.sequences)
    if setup.plan.speculation is not None:
        return timing.guess(setup, each, talk.context, talk.output_len).verify
    return phases.decode(each, talk.context, talk.output_len)


def mixed_step(setup: Setup, talk: Talk) -> Step:
    """A step of chunked prefill: all sequences decode, and a piece of a prompt fills the rest of the token budget."""
    decoding = phases.decode(talk.sequences, talk.context, talk.output_len).groups
    piece = max(0, min(talk.prompt, setup.plan.max_num_batched_tokens - talk.sequences))
    if not piece:
        return Step(decoding)
    chunk = Group(1, piece, talk.cached + (talk.prompt - piece) / 2, piece / talk.prompt)
    return Step((*decoding, chunk))


def tower_step(talk: Talk) -> Step:
    """The images of the prompts."""
    return Step((), talk.images)


def prompt_seconds(setup: Setup, talk: Talk) -> Value:
    """From the first prompt token to the last sequence's first token, front end not counted."""
    first = stages(setup)[0]
    seen = tower_rows(first, tower_step(talk)) if talk.images.count else []
    took = float(sum(row.seconds * row.count for row in seen))
    steps = prefill_steps(setup, talk)
    if isinstance(steps[0][0], list):
        return took + _per_layer(setup, steps[0][0])
    return took + timing.prefill_seconds(setup, steps)  # type: ignore[arg-type]


def token_seconds(setup: Setup, talk: Talk) -> Value:
    """Mean seconds per output token."""
    step = decode_step(setup, talk)
    if isinstance(step, list):
        return _per_layer(setup, step)
    return timing.decode_seconds(setup, talk.sequences, talk.context, talk.output_len)


def _per_layer(setup: Setup, steps: list[Step]) -> float:
    return float(sum(row.seconds * row.count for row in step_rows(setup, steps)))
