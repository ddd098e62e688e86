"""The values of an axis, from what people write: lists, ranges by step or by ratio, and mixtures of them.

numbers("`batch_size`", "1,8:64:8", whole=True)           # (1, 8, 16, 24, 32, 40, 48, 56, 64)
numbers("`input_len`", "128:32768:x2", whole=True)        # (128, 256, 512, …, 32768)
choices("`quantization`", ["bf16", "fp8,int8"])           # ('bf16', 'fp8', 'int8')

Errors begin with the name that is passed first: an argument is marked by backticks, as in `errors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from .errors import BadValue, abbreviate, is_number

MAX_VALUES = 10**6  # values of one axis
FORMS = "numbers separated by commas, start:stop:step, or start:stop:xratio"
Number = int | float


def numbers(what: str, given: Any, *, whole: bool) -> tuple[Number, ...]:
    """The numbers of an axis in the order given, none of them twice; ``whole`` ones only, or any."""
    values: dict[Number, None] = {}
    for item in as_list(given):
        parts = item.split(",") if isinstance(item, str) else [item]
        for part in parts:
            more = _range(what, part.strip(), whole) if isinstance(part, str) else [_number(what, part, whole)]
            values.update(dict.fromkeys(more))
        if len(values) > MAX_VALUES:
            raise BadValue(f"{what} has more than {MAX_VALUES:,} values; give fewer, or a larger step")
    if not values:
        raise BadValue(f"{what} has no values; it takes {FORMS}")
    return tuple(values)


def choices(what: str, given: Any, split: Callable[[str], list[str]] | None = None) -> tuple[Any, ...]:
    """The texts of an axis, none of them twice. What is not text is a value as it stands.

    ``split`` takes a text apart, by default at commas; ``choices("`turns`", "512:128,256:64", lambda text: [text])``
    """
    split = split or (lambda text: [part.strip() for part in text.split(",")])
    values: list[Any] = []
    for item in as_list(given):
        values += [value for value in (split(item) if isinstance(item, str) else [item]) if value not in (*values, "")]
    if not values:
        raise BadValue(f"{what} has no values; it takes names separated by commas")
    return tuple(values)


def switches(what: str, given: Any) -> tuple[bool, ...]:
    """Off, on, or both: ``switches("`enable_expert_parallel`", [False, True])``"""
    values = as_list(given)
    if not values or not all(isinstance(value, bool) for value in values):
        raise BadValue(f"{what} must be True, False or a list of both, not {abbreviate(given)}")
    return tuple(dict.fromkeys(values))


def as_list(given: Any) -> list[Any]:
    """What was given as a list: a list, a range, an array, or one value."""
    if hasattr(given, "tolist"):
        given = given.tolist()
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | dict) else [given]


def _range(what: str, text: str, whole: bool) -> Iterable[Number]:
    """The values of what stands between two commas: a number or a range; of nothing, none."""
    if not text:
        return []
    parts = [part.strip() for part in text.split(":")]
    if len(parts) == 1:
        return [_number(what, text, whole)]
    start, stop = (_number(f"{what} {text}", part, whole) for part in parts[:2])
    if len(parts) == 2:
        raise BadValue(f"{what} {text} has no step: {text}:1 counts up, {text}:x2 doubles")
    if len(parts) > 3:
        raise BadValue(f"{what} takes {FORMS}, not {abbreviate(text)}")
    if stop < start:
        raise BadValue(f"{what} {text} runs backwards: give the smaller number first")
    if parts[2].lower().startswith("x"):
        return _by_ratio(what, text, start, stop, _number(f"{what} {text}", parts[2][1:], False), whole)
    return _by_step(what, text, start, stop, _number(f"{what} {text}", parts[2], whole))


def _by_step(what: str, text: str, start: Number, stop: Number, step: Number) -> Iterable[Number]:
    if step <= 0:
        raise BadValue(f"{what} {text} never reaches {stop:g}: the step must be above 0")
    count = _num_values(what, text, (stop - start) / step)
    if isinstance(start, int) and isinstance(step, int):
        return range(start, start + count * step, step)
    return [float(f"{start + i * step:.12g}") for i in range(count)]  # 3 · 0.1 is 0.3, not 0.30000000000000004


def _by_ratio(what: str, text: str, start: Number, stop: Number, ratio: Number, whole: bool) -> Iterable[Number]:
    if ratio <= 1:
        raise BadValue(f"{what} {text} never reaches {stop:g}: the ratio must be above 1")
    if start <= 0:
        raise BadValue(f"{what} {text} never leaves {start:g}: a range by ratio must start above 0")
    count = _num_values(what, text, math.log(stop / start) / math.log(ratio))
    values = (start * float(ratio) ** i for i in range(count))
    return [v for v in (round(v) if whole else float(f"{v:.12g}") for v in values) if v <= stop]


def _num_values(what: str, text: str, steps: float) -> int:
    """How many values so many steps give, both ends counted, where rounding may fall short of the last."""
    if steps >= MAX_VALUES:
        raise BadValue(f"{what} {text} has {steps // 1 + 1:,.0f} values, more than {MAX_VALUES:,}: give a larger step")
    return math.floor(steps + 1e-9) + 1


def _number(what: str, given: Any, whole: bool) -> Number:
    value = given
    if isinstance(given, str):
        try:
            value = int(given) if given.lstrip("+-").isdecimal() and len(given) < 300 else float(given)
        except ValueError:
            raise BadValue(f"{what} takes {FORMS}, not {abbreviate(given)}") from None
    if not is_number(value) or not abs(value) < 1e18:  # written so that nan is refused, too
        raise BadValue(f"{what} takes {FORMS}, not {abbreviate(given)}")
    if whole and value % 1:
        raise BadValue(f"{what} must be whole numbers, not {abbreviate(given)}")
    return int(value) if whole else float(value)
