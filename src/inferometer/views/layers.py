"""Measured layers of a model, for people: each part at the longest prompt and context, and how well they add up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..units import seconds
from .columns import plain_table


def summary(found: Mapping[str, Any]) -> str:
    """What ``profile MODEL`` prints: ``summary(profile_model("qwen3-0.6b", device="cpu"))``"""
    phases = found["longest"]
    names = dict.fromkeys(name for phase in phases.values() for name in phase["seconds"])
    titles = {phase: f"{phase} {phases[phase]['length']:,}" for phase in phases}
    rows = [{"layer": n, **{titles[phase]: phases[phase]["seconds"].get(n) for phase in phases}} for n in names]
    text = plain_table(rows, lambda key, value: value if isinstance(value, str) else seconds(value)) if rows else ""
    scaled = found["calibration"]
    if scaled:
        text += f"\nwhole model, {scaled['num_layers']} layers: its wall time over the sum of its rows\n"
        for phase in ("prefill", "decode"):
            fit = scaled[phase]
            text += (f"{phase:8} × {fit['factor']:.3f}; then {100 * fit['mean_error']:.1f}% off on average, "
                     f"{100 * fit['max_error']:.1f}% at most, over {fit['points']} points\n")  # fmt: skip
    return text
