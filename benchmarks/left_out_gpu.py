"""GPUs that nobody measured: each GPU with kernel tables is predicted without any of them, and compared with its own.

    python benchmarks/left_out_gpu.py                the table (some seconds)
    python benchmarks/left_out_gpu.py --models       the same by model and format
    python benchmarks/left_out_gpu.py --kinds        the same by kind of kernel
    python benchmarks/left_out_gpu.py --write        puts the table into docs/accuracy/new-gpus.md

Whole steps of five models: decoding 1 to 128 sequences over 512 to 8,192 tokens, and prompts of 128 to 8,192 tokens. A
step is the sum of the kernels that the GPU's own tables have (products, attention, experts, in the plan's own number
formats); no host time, no collectives, and none of the small kernels, which are constants on every GPU. A plan counts
where they are at least 60% of its step at the speed of light.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import accuracy_page
import numpy as np
from msgspec.structs import replace

from inferometer.costs import kernels, precision, roofline
from inferometer.costs.binding import BoundPlan, bind, padded_env, step_env
from inferometer.costs.kernels.lookup import KernelLookup
from inferometer.costs.kernels.registry import left_out, read_profile
from inferometer.costs.step import Group, Step
from inferometer.network import families
from inferometer.specs import catalog
from inferometer.specs.structs import Hardware, Plan

GPUS = ("a100-sxm-80gb", "h100-sxm", "h200", "b200", "l40s", "rtx4090")
PLANS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {},
    "llama-3.1-8b fp8": {"quantization": "fp8", "kv_cache_dtype": "fp8"},
    "llama-3.1-70b tp4": {"tensor_parallel_size": 4},
    "llama-3.1-70b tp4 fp8": {"tensor_parallel_size": 4, "quantization": "fp8"},
    "qwen3-30b-a3b": {},
    "qwen3-30b-a3b fp8": {"quantization": "fp8-block"},
    "mixtral-8x7b-v0.1 tp2": {"tensor_parallel_size": 2},
    "gpt-oss-20b": {"quantization": "mxfp4"},
}
READ_OFF = ("rtx4090",)  # GPUs whose files have shares of their peaks from the very tables
BATCHES, CONTEXTS = (1.0, 8.0, 32.0, 128.0), (512.0, 2048.0, 8192.0)
MIN_COVERAGE = 0.6  # of a step's roofline seconds must be kernels of the GPU's own tables
PROMPTS = tuple(2.0**power for power in range(7, 14))


class Comparison(NamedTuple):
    """Seconds of the same kernels at all points of a phase: by the GPU's own tables, without them, at its peaks."""

    gpu: str
    plan: str
    phase: str
    kind: str
    own: np.ndarray
    without: np.ndarray
    light: np.ndarray


def steps() -> dict[str, Step]:
    """All points of each phase as arrays."""
    batch, context = (axis.ravel() for axis in np.meshgrid(BATCHES, CONTEXTS))
    prompt = np.array(PROMPTS)
    return {
        "decode": Step((Group(batch, np.ones_like(batch), context, decode=True),)),
        "prefill": Step((Group(np.ones_like(prompt), prompt, np.zeros_like(prompt)),)),
    }


def plan_of(device: Hardware, name: str) -> BoundPlan:
    """A plan of the list on a GPU: ``plan_of(catalog.hardware("h200"), "llama-3.1-8b fp8")``"""
    model = families.build(catalog.model(name.split()[0]).config)
    return bind(model, device, catalog.engine("vllm"), Plan(**PLANS[name]))


def unmeasured(device: Hardware) -> Hardware:
    """A GPU as its data sheet and public microbenchmarks have it, without shares of its peaks read off its tables."""
    return replace(device, reach_flops=0.0, reach_memory=0.0) if device.name in READ_OFF else device


def own_sources(bound: BoundPlan) -> tuple[kernels.Source, ...]:
    """What the GPU's own tables say in the plan's own number formats; nan for all other kernels."""
    plan, device = bound.plan, bound.device
    roles = precision.precision_by_role(bound.model, plan.dtype, plan.quantization)
    roles = precision.computed_as(bound.engine, bound.model, device, roles)
    formats = kernels.Formats(
        precision.formats(device, roles, plan.dtype), plan.kv_cache_dtype, kernels.rounding(bound.engine, device)
    )
    profiles = [one for stem in ("measured", "vllm") if (one := read_profile(device.name, stem)) is not None]
    lookups = [KernelLookup(one, formats, exact=True) for one in profiles if one.measured]
    lookups += [KernelLookup(one, formats, own_format=True) for one in profiles if one.fitted]
    nothing = kernels.Source("assumed", lambda op, dims, terms: terms.memory * np.nan, lambda op: "")
    return (*(lookup.source() for lookup in lookups), nothing)


def comparisons(gpus: tuple[str, ...] = GPUS, plans: tuple[str, ...] = tuple(PLANS)) -> Iterator[Comparison]:
    """Every GPU, plan, phase and kind of kernel."""
    for gpu in gpus:
        for name in plans:
            bound = plan_of(catalog.hardware(gpu), name)
            own = own_sources(bound)
            with left_out(gpu):
                alone = plan_of(unmeasured(bound.device), name).sources
            for phase, step in steps().items():
                yield from _by_kind(gpu, name, phase, bound, step, (own, alone))


def _by_kind(
    gpu: str,
    name: str,
    phase: str,
    bound: BoundPlan,
    step: Step,
    sources: tuple[tuple[kernels.Source, ...], tuple[kernels.Source, ...]],
) -> Iterator[Comparison]:
    env = padded_env(bound, step_env(bound, step))
    shape = np.shape(env["tokens"])
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros((3, *shape)))
    light = np.zeros(shape)
    for block in bound.text:
        for own, other in zip(*(roofline.op_costs(block, env, chain) for chain in sources), strict=True):
            seconds = np.array(
                [np.broadcast_to(x, shape) for x in (own.seconds, other.seconds, own.terms.roofline)], dtype=float
            )
            light += seconds[2] * own.count * (not own.op.axis)
            sums[own.op.kind] += np.where(np.isnan(seconds[0]), 0.0, seconds) * own.count
    if np.median(sum(one[2] for one in sums.values()) / light) < MIN_COVERAGE:
        return
    for kind, (own_seconds, without, at_peak) in sums.items():
        if own_seconds.any():
            yield Comparison(gpu, name, phase, kind, own_seconds, without, at_peak)


def grouped(rows: list[Comparison], *fields: str) -> dict[tuple[str, ...], np.ndarray]:
    """Own, left-out and roofline seconds of whole steps, by some fields: an array (3, points)."""
    steps_of: dict[tuple[str, ...], dict[str, np.ndarray]] = defaultdict(dict)
    for row in rows:
        key = tuple(str(getattr(row, field)) for field in fields)
        step = steps_of[key]
        step[row.plan] = step.get(row.plan, 0.0) + np.stack([row.own, row.without, row.light])
    joined = {key: np.concatenate(list(parts.values()), axis=1) for key, parts in steps_of.items()}
    return {key: values[:, values[0] > 0] for key, values in joined.items()}


def median_error(values: np.ndarray) -> float:
    """Median of |left out / own - 1|."""
    return float(np.median(np.abs(values[1] / values[0] - 1)))


def markdown(rows: list[Comparison], *fields: str) -> str:
    """A table, one line for each value of the fields."""
    lines = [
        f"| {' | '.join(fields)} | points | median error | p90 | bias | roofline's error |",
        "|" + "---|" * len(fields) + "---:|" * 5,
    ]
    for key, values in grouped(rows, *fields).items():
        own, without, light = values
        off = without / own - 1
        figures = (np.median(np.abs(off)), np.quantile(np.abs(off), 0.9))
        lines.append(
            f"| {' | '.join(key)} | {own.size} | "
            + " | ".join(f"{100 * x:.1f}%" for x in figures)
            + f" | {100 * np.median(off):+.1f}% | {100 * np.median(np.abs(light / own - 1)):.1f}% |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="GPUs that nobody measured, from the tables of the others.")
    parser.add_argument("--models", action="store_true", help="by model and format")
    parser.add_argument("--kinds", action="store_true", help="by kind of kernel")
    parser.add_argument("--write", action="store_true", help="put the table into docs/accuracy/new-gpus.md")
    given = parser.parse_args()
    rows = list(comparisons())
    print(markdown(rows, "gpu", *(["plan"] if given.models else []), "phase", *(["kind"] if given.kinds else [])))
    if given.write:
        accuracy_page.write(left_out=markdown(rows, "gpu", "phase"))


if __name__ == "__main__":
    main()
