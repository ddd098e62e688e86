"""Physics over the whole catalogue: more work, a worse device or more bits never take less time.

`exceptions.toml` beside the kernel profiles names what measurements say otherwise, each with its source; an entry that
nothing needs any more is an error, too.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from helpers.physics import (
    CONTEXTS,
    MODELS,
    TOLERANCE,
    Steps,
    Violation,
    dominates,
    exceptions,
    kernel_falls,
    runs_as,
    step_falls,
    steps,
    usual_precisions,
)

from inferometer.specs import catalog

TABLES = ("a100-sxm-80gb", "l40s", "h100-sxm", "h200", "b200")  # devices whose kernels were timed
FEWER_BITS = (  # at batch 1, where weights are read and little else
    ("w8a16", "bf16"),
    ("fp8", "bf16"),
    ("fp8-block", "bf16"),
    ("int8", "bf16"),
    ("w4a16", "w8a16"),
    ("w4a16", "fp8"),
    ("nvfp4", "fp8"),
    ("mxfp4", "bf16"),
)
FASTER_UNITS = (("fp8", "bf16", "fp8"), ("int8", "bf16", "int8"), ("nvfp4", "fp8", "fp4"))
AT_1024 = int(np.flatnonzero(CONTEXTS == 1024)[0])
Key = tuple[str, str, str, str]  # model, device, engine, precision
Table = dict[Key, Steps]


def every_step(devices: Sequence[str], models: Sequence[str], engines: Sequence[str]) -> Table:
    """Steps of all combinations; of engines that run another's kernels only some."""
    table = {}
    for model, name, engine in itertools.product(models, devices, engines):
        device = catalog.hardware(name)
        for precision in usual_precisions(model, device):
            if engine in ("vllm", "trtllm") or (model == "llama-3.1-8b" and precision in ("bf16", "fp8")):
                table[model, name, engine, precision] = steps(model, device, engine, precision)
    return table


def bits(table: Table) -> Iterator[Violation]:
    """Fewer bits are never slower: decoding one sequence, and long prompts where the matrix units are faster."""
    for (model, device, engine, precision), took in table.items():
        units = catalog.hardware(device).flops
        for fewer, more in FEWER_BITS:
            other = table.get((model, device, engine, more)) if fewer == precision else None
            by = float(took.decode[0, AT_1024] / other.decode[0, AT_1024] - 1) if other else 0.0
            if by > TOLERANCE:
                yield Violation("bits decode", model, device, engine, f"{fewer} {more}", "batch 1", by)
        for fewer, more, unit in FASTER_UNITS:
            faster = fewer == precision and units.get(unit, 0) > units.get("bf16", units.get("fp16", 0))
            other = table.get((model, device, engine, more)) if faster else None
            by = float(took.prompts[-1] / other.prompts[-1] - 1) if other else 0.0
            if by > TOLERANCE:
                yield Violation("bits prompt", model, device, engine, f"{fewer} {more}", "16,000 tokens", by)


def better_devices(table: Table) -> Iterator[Violation]:
    """A device that has no worse figure, and runs the same format, is never slower."""
    devices = {name: catalog.hardware(name) for _, name, _, _ in table}
    for better, worse in itertools.permutations(devices.values(), 2):
        ranked = [dominates(better, worse, linked=linked) for linked in (False, True)]
        if not any(ranked):
            continue
        for model, name, engine, precision in [key for key in table if key[1] == better.name]:
            key = model, worse.name, engine, precision
            if (
                not ranked[MODELS[model] > 1]
                or key not in table
                or runs_as(better, precision) != runs_as(worse, precision)
            ):
                continue
            for phase in Steps._fields:
                ratio = getattr(table[model, name, engine, precision], phase) / getattr(table[key], phase) - 1
                if ratio.max() > TOLERANCE:
                    where = str([int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape)])
                    pair = f"{better.name} {worse.name}"
                    yield Violation(f"device {phase}", model, pair, engine, precision, where, float(ratio.max()))


def violations(devices: Sequence[str], models: Sequence[str], engines: Sequence[str]) -> list[Violation]:
    """All guards that are broken: by whole steps on all devices, by single kernels on those that have tables."""
    table = every_step(devices, models, engines)
    broken = [v for key, took in table.items() for v in step_falls(key[0], catalog.hardware(key[1]), *key[2:], took)]
    broken += [*bits(table), *better_devices(table)]
    for name, engine in itertools.product(set(devices) & set(TABLES), set(engines) & {"vllm", "trtllm"}):
        device = catalog.hardware(name)
        timed = [precision for precision in ("bf16", "fp8") if precision in device.flops]
        broken += kernel_falls(device, engine, timed)
    return broken


def unnamed(broken: list[Violation]) -> list[Violation]:
    """Violations that no exception names."""
    return [v for v in broken if not any(v.matches(exception) for exception in exceptions())]


@pytest.mark.slow
def test_physics_holds_on_every_device() -> None:
    every = bool(os.environ.get("INFEROMETER_SLOW_TESTS"))
    engines = ("vllm", "trtllm", "sglang", "hf") if every else ("vllm",)
    devices = [name for at, name in enumerate(catalog.names("hardware")) if every or at % 4 == 1 or name in TABLES]
    broken = violations(devices, list(MODELS), engines)
    new = sorted(unnamed(broken), key=lambda v: -v.by)
    assert not new, f"{len(new)} guards are broken, the worst: " + "; ".join(map(str, new[:10]))
    if not every:
        return
    idle = [entry for entry in exceptions() if not any(v.matches(entry) for v in broken)]
    assert not idle, f"exceptions that nothing needs any more: {idle}"


@pytest.mark.slow
def test_physics_holds_on_some_devices() -> None:
    """A sample of the above that takes no time."""
    assert not unnamed(violations(["a100-sxm-80gb", "h100-sxm", "b200"], ["llama-3.1-8b"], ["vllm"]))


def test_exceptions_say_where_they_come_from() -> None:
    for entry in exceptions():
        assert set(entry) >= {"guard", "source"} and len(entry["source"]) > 20, entry
        assert set(entry) & {"subject", "device", "precision"}, f"too wide: {entry}"
