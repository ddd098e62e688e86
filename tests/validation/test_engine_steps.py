"""The page of accuracy says what the code gives for engine steps, memory and kernels."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

import numpy as np
import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def benchmarks() -> ModuleType:
    """The script that makes the page, with those that it calls beside it."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    return importlib.import_module("accuracy")


@pytest.fixture(scope="module")
def page(benchmarks: ModuleType) -> str:
    return str(benchmarks.accuracy_page.read())


@pytest.mark.slow
def test_steps_and_memory(benchmarks: ModuleType, page: str) -> None:
    sections = benchmarks.engine_steps.sections(with_left_out=bool(os.environ.get("INFEROMETER_SLOW_TESTS")))
    for name, text in sections.items():
        assert benchmarks.accuracy_page.stands(page, name) == text, f"{name}: python benchmarks/accuracy.py --write"


@pytest.mark.slow
def test_kernels(benchmarks: ModuleType, page: str) -> None:
    assert benchmarks.accuracy_page.stands(page, "kernels-own") == benchmarks.kernel_accuracy.own_table()
    assert benchmarks.accuracy_page.stands(page, "kernels") == benchmarks.kernel_accuracy.tables()


def test_decode_is_close(benchmarks: ModuleType) -> None:
    """Dense, mixture and 8-bit models, on steps that no kernel figure was fitted to."""
    steps = benchmarks.engine_steps
    every = steps.rows(steps.OWN)
    for model in ("qwen3-8b", "mixtral-8x7b-v0.1"):
        off = steps.errors(steps.bound_plan(model, "bf16"), every[model, "bf16"])["decode"]
        assert np.abs(off).mean() < 0.03
    first = steps.rows(steps.FIRST)
    limits = {
        ("llama-3.1-8b", "bf16"): 0.025,
        ("llama-2-7b", "bf16"): 0.025,
        ("llama-3.1-8b", "fp8"): 0.04,
        ("qwen3-30b-a3b", "bf16"): 0.04,
    }
    for key, most in limits.items():
        assert np.abs(steps.errors(steps.bound_plan(*key), first[key])["decode"]).mean() < most, key
