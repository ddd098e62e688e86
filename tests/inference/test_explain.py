"""``--explain``: rows of the report that are no kernel are explained, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Ran

Run = Callable[..., Ran]


def test_rows_without_a_kernel_are_explained(run: Run) -> None:
    args = ("analyze", "llama-3.1-70b", "--gpu", "h200", "-pp", "4")
    host = run(*args, "--input-len", "64", "--explain", "host_overhead")
    assert host.code == 0 and "power limit" in host.out and "prefill" in host.out and "decode" in host.out
    table = run(*args, "--json").json["phases"]
    for name, phase in (("pipeline_wait", "decode"), ("pipeline_fill", "prefill")):
        ran = run(*args, "--explain", name, "--json")
        row = next(op for op in table[phase]["ops"] if op["name"] == name)
        assert ran.code == 0 and len(ran.json) == 1
        assert ran.json[0]["seconds"] == pytest.approx(row["seconds"]) and "stage" in ran.json[0]["note"]
    spec = '{"model": "llama-3.2-1b", "num_speculative_tokens": 4, "acceptance_rate": 0.7}'
    draft = run(
        "analyze", "llama-3.1-70b", "--gpu", "h200", "-tp", "4", "--speculative-config", spec, "--explain", "draft"
    )
    assert draft.code == 0 and "4 steps of llama-3.2-1b" in draft.out
    assert run("analyze", "llama-3.1-8b", "--explain", "pipeline_wait").code == 0  # nothing to wait for
    assert "pipeline_wait" in run("analyze", "llama-3.1-8b", "--explain", "pipeline_wayt").err
