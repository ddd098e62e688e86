"""Shapes of tensors as an engineer writes them: the batch apart, whole rows, and a word where a number is a mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

TIMES = " × "


def shape_texts(shape: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """The tensors of an operator: ``shape_texts({"keys": [34816, 8, 128], "sequences": [32]})``

    # {'keys': '32 × 1088 × 8 × 128'}
    """
    tensors = {name: list(sizes) for name, sizes in shape.items() if name != "sequences"}
    (sequences,) = shape.get("sequences", [0.0])
    if sequences and "keys" in tensors:  # a sum over sequences is no tensor of any of them
        rows, *rest = tensors["keys"]
        tensors["keys"] = [sequences, rows / sequences, *rest]
    return {name: text for name, sizes in tensors.items() if (text := shape_text(sizes))}


def shape_text(sizes: Sequence[float]) -> str:
    """One tensor: ``shape_text([57.4, 7168])  # '≈ 57 × 7168'``; nothing of one without elements.

    Less than a row in the mean is a row in some steps: ``shape_text([0.25, 4096])  # '1 × 4096 in 1 of 4 steps'``
    """
    if not sizes or 0 in sizes:
        return ""
    rows = sizes[0]
    text = TIMES.join(str(max(1, math.floor(size + 0.5))) for size in sizes)
    if rows < 1 - 1e-6:
        every = 1 / rows
        return f"{text} in {f'1 of {every:.0f}' if _whole(every) else f'{rows:.0%} of'} steps"
    return text if all(map(_whole, sizes)) else f"≈ {text}"


def _whole(size: float) -> bool:
    return abs(size - round(size)) < 1e-6 * max(1.0, size)
