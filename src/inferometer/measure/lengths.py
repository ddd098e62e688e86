"""Which lengths of prompt and context are worth measuring, and in which order."""

from __future__ import annotations

from itertools import zip_longest

from .layer_rows import Length

MODES = ("prefill", "decode", "both")


def lengths(most: int, step: int | None = None) -> list[int]:
    """1, 2, 4 … up to the step, then every step: ``lengths(512, 128)  # [1, 2, 4, …, 64, 128, 256, 384, 512]``

    Small lengths differ by their number of kernels and waves, long ones are nearly linear. The step is a sixteenth of
    the longest unless given, as a power of two.
    """
    step = step or 1 << max(0, (most // 16).bit_length() - 1)
    doubling = [1 << power for power in range(step.bit_length()) if 1 << power < min(step, most)]
    return sorted({*doubling, *range(step, most + 1, step), most})


def coarse_first(values: list[int]) -> list[int]:
    """The ends, then the middles of what is between: ``coarse_first([1, 2, 3, 4, 5])  # [1, 5, 3, 2, 4]``"""
    found = [values[0], values[-1]]
    gaps = [(0, len(values) - 1)]
    for first, last in gaps:
        middle = (first + last) // 2
        if first < middle < last:
            found.append(values[middle])
            gaps += [(first, middle), (middle, last)]
    return list(dict.fromkeys(found))


def planned(mode: str, prefill_max: int, decode_max: int, step: int | None, positions: int | None) -> list[Length]:
    """All lengths in the order of their worth, the phases in turn; none is beyond the model's positions.

    ``planned("decode", 2048, 2048, None, 1024)  # [Length(1, 0), Length(1, 1023), …]``
    """
    most = positions or 10**9
    new = coarse_first(lengths(min(prefill_max, most), step))
    old = coarse_first(sorted({0, *lengths(min(decode_max, most - 1), step)}))
    phases = {"prefill": [Length(n, 0) for n in new], "decode": [Length(1, n) for n in old]}
    chosen = [phases[phase] for phase in phases if mode in (phase, "both")]
    return list(dict.fromkeys(length for turn in zip_longest(*chosen) for length in turn if length))
