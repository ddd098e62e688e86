"""Plans for tests: a model of the catalogue bound to a device, an engine and a layout."""

from __future__ import annotations

from functools import cache
from typing import Any

from inferometer.costs.binding import BoundPlan, bind
from inferometer.network import families
from inferometer.network.graph import Model
from inferometer.specs import catalog
from inferometer.specs.structs import Plan


@cache
def network(name: str) -> Model:
    """The graph of a model in the catalogue, built once."""
    return families.build(catalog.model(name).config)


def bound_plan(
    model: str, gpu: str = "h200", engine: str = "vllm", efficiency: dict[str, float] | None = None, **plan: Any
) -> BoundPlan:
    """``bound_plan("llama-3.1-8b", tensor_parallel_size=2)``"""
    return bind(network(model), catalog.hardware(gpu), catalog.engine(engine), Plan(**plan), efficiency=efficiency)
