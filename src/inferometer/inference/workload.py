"""What is asked of the engine, from the words of a request: lengths, a conversation's turns, images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..base.errors import BadValue, abbreviate, check_int, is_number
from ..costs.images import images as tokens_of
from ..network.graph import Model
from ..specs.structs import Image, Turn, Workload

TOKENS = 10**8  # no request is longer than this


def numbers(what: str, text: str) -> list[int]:
    """``numbers("--input-len", "1024,512")  # [1024, 512]``"""
    try:
        return [int(piece) for piece in text.replace(" ", "").split(",")]
    except ValueError:
        raise BadValue(f"{what} must be whole numbers with commas between, not {abbreviate(text)}") from None


def lengths(value: int | Sequence[int] | str, layers: int) -> int | tuple[int, ...]:
    """One length, or one per layer."""
    if isinstance(value, str):
        value = numbers("--input-len", value)
    if isinstance(value, int) or is_number(value):
        return check_int("--input-len", value, most=TOKENS)
    if not isinstance(value, Sequence) and not hasattr(value, "tolist"):
        raise BadValue(f"--input-len must be a whole number, or one per layer, not {abbreviate(value)}")
    found = tuple(check_int("--input-len", v, most=TOKENS) for v in value)
    if len(found) == 1:
        return found[0]
    if len(found) != layers:
        raise BadValue(
            f"--input-len has {len(found)} numbers, but the model has {layers} layers: give one, or one per layer"
        )
    return found


def talk_turns(value: str | Sequence[tuple[int, int]] | None) -> tuple[Turn, ...]:
    """``512:128,256:128`` as prompts and answers over one growing context."""
    if value is None:
        return ()
    pairs: Any = [piece.split(":") for piece in value.split(",")] if isinstance(value, str) else value
    listed = isinstance(pairs, Sequence) and bool(pairs)
    if not listed or any(isinstance(p, str) or not isinstance(p, Sequence) or len(p) != 2 for p in pairs):
        raise BadValue(f"--turns must be pairs input:output with commas between, not {abbreviate(value)}")
    if isinstance(value, str):
        pairs = [(numbers("--turns", a)[0], numbers("--turns", b)[0]) for a, b in pairs]
    return tuple(
        Turn(input_len=check_int("--turns", a, most=TOKENS), output_len=check_int("--turns", b, most=TOKENS))
        for a, b in pairs
    )


def pictures(value: str | Sequence[int] | None, model: Model) -> Image | None:
    """``1x896x896``: count, height and width of the images in every request."""
    if value is None:
        return None
    if model.vision is None:
        raise BadValue("--images needs a model with a vision tower; this one reads text only")
    sides: Any = value
    if isinstance(value, str):
        found = re.fullmatch(r"(\d{1,9})x(\d{1,9})x(\d{1,9})", value.strip().lower())
        sides = [int(number) for number in found.groups()] if found else ()
    if not isinstance(sides, Sequence) or len(sides) != 3:
        raise BadValue(f"--images must be COUNTxHEIGHTxWIDTH such as 1x896x896, not {abbreviate(value)}")
    count, height, width = sides
    return Image(
        count=check_int("--images", count, most=10000),
        height=check_int("--images", height, most=100000),
        width=check_int("--images", width, most=100000),
    )


def longest(work: Workload) -> int:
    """Prompt tokens of the layer that has most."""
    return work.input_len if isinstance(work.input_len, int) else max(work.input_len)


def reached(work: Workload, model: Model) -> int:
    """Positions of a finished sequence, images included."""
    shown = work.images
    seen = int(tokens_of(model.vision, shown.height, shown.width, shown.count).tokens) if shown and model.vision else 0
    if work.turns:
        return seen + sum(t.input_len + t.output_len for t in work.turns)
    return seen + longest(work) + (work.output_len if model.kind == "decoder" else 0)


def refuse(sentence: str, given: Mapping[str, object]) -> None:
    """The first flag that was given makes ``sentence`` an error, ``{}`` being the flag."""
    for flag, value in given.items():
        if value:
            raise BadValue(sentence.format(flag))
