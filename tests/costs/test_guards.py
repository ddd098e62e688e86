"""Physics: more work never takes less time.

`exceptions.toml` beside the kernel profiles names what measurements say otherwise, each with its source; an entry that
nothing needs any more is an error, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from helpers.physics import MODELS, Violation, exceptions, kernel_falls, step_falls, steps

from inferometer.specs import catalog

TABLES = ("a100-sxm-80gb", "l40s", "h100-sxm", "h200", "b200")  # devices whose kernels were timed


def violations(devices: Sequence[str], models: Sequence[str], engines: Sequence[str]) -> list[Violation]:
    """All guards that are broken."""
    broken: list[Violation] = []
    for device, engine in itertools.product(map(catalog.hardware, devices), engines):
        timed = [precision for precision in ("bf16", "fp8") if precision in device.flops]  # formats that have tables
        broken += kernel_falls(device, engine, timed)
        for model, precision in itertools.product(models, timed):
            broken += step_falls(model, device, engine, precision, steps(model, device, engine, precision))
    return broken


def unnamed(broken: list[Violation]) -> list[Violation]:
    """Violations that no exception names."""
    return [v for v in broken if not any(v.matches(exception) for exception in exceptions())]


@pytest.mark.slow
def test_physics_holds_on_every_device() -> None:
    broken = violations(TABLES, list(MODELS), ("vllm", "trtllm"))
    new = sorted(unnamed(broken), key=lambda v: -v.by)
    assert not new, f"{len(new)} guards are broken, the worst: " + "; ".join(map(str, new[:10]))
    idle = [entry for entry in exceptions() if not any(v.matches(entry) for v in broken)]
    assert not idle, f"exceptions that nothing needs any more: {idle}"


def test_physics_holds_on_some_devices() -> None:
    """A sample of the above that takes no time."""
    assert not unnamed(violations(["h100-sxm", "b200"], ["llama-3.1-8b"], ["vllm"]))


def test_exceptions_say_where_they_come_from() -> None:
    for entry in exceptions():
        assert set(entry) >= {"guard", "source"} and len(entry["source"]) > 20, entry
        assert len(set(entry) & {"subject", "device", "engine", "precision"}) >= 2, f"too wide: {entry}"
