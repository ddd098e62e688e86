"""A batch of requests: lengths, turns and images as they are given, and the shape that the batch has on a replica.

parse_turns("512:128,256:64")[1].output_len                # 64
uniform_batch_shape(bound_plan, 8, 1024, 128).context      # 1024
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..base.errors import BadValue, abbreviate, check_int, is_number
from ..base.symbols import Value
from ..base.units import ceil_div
from ..costs.binding import BoundPlan
from ..costs.step import Images, images
from ..network.graph import Model
from ..specs.plan_args import TOKENS
from ..specs.structs import Image, Turn, Workload


def parse_numbers(name: str, text: str) -> list[int]:
    """``parse_numbers("input_len", "1024,512")  # [1024, 512]``"""
    try:
        return [int(piece) for piece in text.replace(" ", "").split(",")]
    except ValueError:
        sentence = f"`{name}` must be whole numbers separated by commas, not {abbreviate(text)}"
        raise BadValue(sentence, field=name) from None


def parse_lengths(value: int | Sequence[int] | str, layers: int, name: str = "input_len") -> int | tuple[int, ...]:
    """One length, or one per layer: ``parse_lengths("512,256", layers=2)  # (512, 256)``"""
    if isinstance(value, str):
        value = parse_numbers(name, value)
    if isinstance(value, int) or is_number(value):
        return check_int(name, value, most=TOKENS)
    if not isinstance(value, Sequence) and not hasattr(value, "tolist"):
        raise BadValue(f"`{name}` must be a whole number, or one per layer, not {abbreviate(value)}")
    lengths = tuple(check_int(name, length, most=TOKENS) for length in value)
    if len(lengths) == 1:
        return lengths[0]
    if len(lengths) != layers:
        raise BadValue(
            f"`{name}` has {len(lengths)} numbers, but the model has {layers} layers: give one number, or one per layer"
        )
    return lengths


def parse_turns(value: str | Sequence[tuple[int, int]] | None) -> tuple[Turn, ...]:
    """``512:128,256:128`` as prompts and answers over one growing context."""
    if value is None:
        return ()
    pairs: Any = [piece.split(":") for piece in value.split(",")] if isinstance(value, str) else value
    listed = isinstance(pairs, Sequence) and bool(pairs)
    if not listed or any(isinstance(p, str) or not isinstance(p, Sequence) or len(p) != 2 for p in pairs):
        raise BadValue(f"`turns` must be input:output pairs separated by commas, not {abbreviate(value)}")
    if isinstance(value, str):
        pairs = [(parse_numbers("turns", a)[0], parse_numbers("turns", b)[0]) for a, b in pairs]
    return tuple(
        Turn(input_len=check_int("turns", a, most=TOKENS), output_len=check_int("turns", b, most=TOKENS))
        for a, b in pairs
    )


def parse_images(value: str | Sequence[int] | None, model: Model) -> Image | None:
    """``1x896x896``: count, height and width of the images in every request."""
    if value is None:
        return None
    if model.vision is None:
        raise BadValue("`images` needs a vision-language model; this one takes text only")
    sides: Any = value
    if isinstance(value, str):
        match = re.fullmatch(r"(\d{1,9})x(\d{1,9})x(\d{1,9})", value.strip().lower())
        sides = [int(number) for number in match.groups()] if match else ()
    if not isinstance(sides, Sequence) or len(sides) != 3:
        raise BadValue(f"`images` must be COUNTxHEIGHTxWIDTH such as 1x896x896, not {abbreviate(value)}")
    count, height, width = sides
    return Image(
        count=check_int("images", count, most=10000),
        height=check_int("images", height, most=100000),
        width=check_int("images", width, most=100000),
    )


def longest_input(workload: Workload) -> int:
    """Prompt tokens of the layer that has most."""
    return workload.input_len if isinstance(workload.input_len, int) else max(workload.input_len)


def prompt_tokens(workload: Workload, image_tokens: int) -> int:
    """Tokens of text and images in the layer that has most; one number per layer counts those of images already."""
    return longest_input(workload) + (image_tokens if isinstance(workload.input_len, int) else 0)


def positions_reached(workload: Workload, model: Model) -> int:
    """Positions of a finished sequence, images included."""
    image_tokens = int(_images(workload, model).tokens)
    if workload.turns:
        return image_tokens + sum(turn.input_len + turn.output_len for turn in workload.turns)
    return prompt_tokens(workload, image_tokens) + (workload.output_len if model.kind == "decoder" else 0)


def _images(workload: Workload, model: Model) -> Images:
    """The images of one request as patches and tokens."""
    image = workload.images
    if image is None or model.vision is None:
        return Images()
    return images(model.vision, image.height, image.width, image.count)


def refuse(sentence: str, given: Mapping[str, object]) -> None:
    """The first argument that was given makes ``sentence`` an error, ``{}`` being its name.

    ``refuse("{} does not apply to a diffusion model", {"turns": turns is not None})``
    """
    for name, value in given.items():
        if value:
            raise BadValue(sentence.format(f"`{name}`" if name.isidentifier() else name), field=name)


# ------------------------------------------------------------------ its shape on a replica


class BatchShape(NamedTuple):
    """Counts of one data-parallel replica, unless said; each may be an array (``input_len`` of numbers)."""

    batch_size: Value  # sequences of all replicas
    batch_per_replica: Value  # sequences of the fullest replica
    beams: int
    input_len: Value | tuple[int, ...]
    new_tokens: Value  # new tokens of the longest layer, images included
    cached_tokens: Value
    output_len: Value
    images: Images = Images()

    @property
    def sequences(self) -> Value:
        """Sequences that decode at once on a replica, beams included."""
        return self.batch_per_replica * self.beams

    @property
    def context(self) -> Value:
        """Tokens of a sequence when its answer begins."""
        return self.cached_tokens + self.new_tokens

    @property
    def length(self) -> Value:
        """Tokens of a finished sequence."""
        return self.context + self.output_len


def batch_shape_of(bound_plan: BoundPlan, work: Workload) -> BatchShape:
    """The last turn of a conversation, or the only one."""
    pictures = _images(work, bound_plan.model)
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
        new, cached, output = prompt_tokens(work, seen) - work.prefix_len, work.prefix_len, work.output_len
        lengths = work.input_len
    per_replica = ceil_div(work.batch_size, bound_plan.plan.data_parallel_size)
    scaled = Images(*(per_replica * x for x in pictures))
    output = output if bound_plan.model.kind == "decoder" else 0
    return BatchShape(work.batch_size, per_replica, work.beam_width, lengths, new, cached, output, scaled)


def uniform_batch_shape(
    bound_plan: BoundPlan, batch: Value, input_len: Value, output_len: Value, prefix_len: Value = 0
) -> BatchShape:
    """Prompts and answers by the numbers, or by arrays that broadcast: ``uniform_batch_shape(plan, 8, 1024, 128)``"""
    per_replica = -(-batch // bound_plan.plan.data_parallel_size)
    return BatchShape(batch, per_replica, 1, input_len, input_len - prefix_len, prefix_len, output_len)
