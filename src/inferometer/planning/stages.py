"""Seconds and bytes of pipeline stages, for one set of steps and every depth of pipeline: each block is priced once.

A stage is a few layers of each block. So a model cut into 16 stages costs no more to price than the whole: its blocks
are priced for one layer and counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from .. import cost, memory, overhead
from ..evaluate import Setup, as_run, bound, calibrated, stages
from ..graph import Block, once_per
from ..steps import Step
from ..symbols import Value


class Stage(NamedTuple):
    """A part of the model that some stages have alike."""

    setup: Setup
    alike: int  # stages that are like this one


def distinct(setup: Setup) -> list[Stage]:
    """The stages of a setup's pipeline, those that are alike once."""
    found: dict[tuple[tuple[int, int], ...], Stage] = {}
    for part in stages(setup):
        key = tuple((id(block.ops), block.count) for block in part.model.blocks)
        known = found.get(key)
        found[key] = Stage(known.setup if known else part, known.alike + 1 if known else 1)
    return list(found.values())


@once_per(2000)
def _single(block: Block) -> Block:
    """One layer of a block."""
    return msgspec.structs.replace(block, layers=block.layers[:1])


class Priced:
    """A layout's blocks under some steps: ``Priced(setup, step).seconds(distinct(setup))``"""

    def __init__(self, setup: Setup, step: Step) -> None:
        self.setup = setup
        self.sums = bound(setup, step)
        self.run = as_run(setup, self.sums)
        self.known: dict[int, Value] = {}

    def kernels(self, stage: Setup) -> Value:
        """Seconds of a stage's kernels. What is sent between stages goes over the stage's own link."""
        total: Value = 0.0
        for block in stage.model.blocks:
            if block.stage == "vision":
                continue
            if block.name == "pipeline":
                env = {**self.run, "pp_bandwidth": stage.env["pp_bandwidth"], "pp_latency": stage.env["pp_latency"]}
                total = total + cost.seconds((block,), env, stage.sources)
                continue
            key = id(block.ops)
            if key not in self.known:
                self.known[key] = cost.seconds((_single(block),), self.run, self.setup.sources)
            total = total + block.count * self.known[key]
        return total

    def seconds(self, stage: Setup, kernels: Value, heat: Value = 0.0) -> Any:
        """A step's seconds on a stage whose kernels take so long, the engine's own time included."""
        sums = {**self.sums, "heat": heat}
        added = overhead.host_seconds(stage.model, stage.engine, sums, kernels)
        return (kernels + added) * calibrated(stage, sums)


class Sizes:
    """Bytes of a layout's stages, block by block: weights, a sequence's cache, activations of its largest steps."""

    def __init__(self, setup: Setup, lengths: np.ndarray, largest: Step) -> None:
        self.setup, self.lengths, self.largest = setup, lengths, largest
        self.known: dict[int, tuple[float, Any, Any]] = {}

    def stage(self, stage: Setup) -> tuple[float, Any, Any]:
        """Weights; cache of a sequence at each length; the peak of activations of each of the largest steps."""
        weights, live = 0.0, np.zeros(())
        cache = np.zeros(len(self.lengths))
        for block in stage.model.blocks:
            key = id(block.ops)
            if key not in self.known:
                self.known[key] = self._of(block, stage)
            stored, kept, peak = self.known[key]
            weights, cache, live = weights + block.count * stored, cache + block.count * kept, np.maximum(live, peak)
        return weights, cache, live

    def _of(self, block: Block, stage: Setup) -> tuple[float, Any, Any]:
        one = self.setup._replace(model=msgspec.structs.replace(stage.model, blocks=(_single(block),)))
        return (float(memory.weight_bytes(one)), memory.cache_bytes(one, self.lengths),
                memory.activation_bytes(one, self.largest))  # fmt: skip
