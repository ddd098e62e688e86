"""The page of accuracy says what the code gives for the engine's steps."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    spec = importlib.util.spec_from_file_location("engine_steps", ROOT / "benchmarks" / "engine_steps.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["unseen", "seen"])
def test_the_page_is_what_the_code_gives(steps: ModuleType, name: str) -> None:
    path: Path = steps.UNSEEN if name == "unseen" else steps.seen()
    if not path.exists():
        pytest.skip(f"{path} is not at hand")
    assert steps.section(name, path) in steps.PAGE.read_text(encoding="utf-8"), (
        "python benchmarks/engine_steps.py --write"
    )


def test_decode_of_unseen_models_is_close(steps: ModuleType) -> None:
    """Dense and mixture, on models whose engine steps were not fitted."""
    found = steps.errors(steps.UNSEEN)
    for model in ("qwen3-8b", "mixtral-8x7b-v0.1"):
        errors = found[(model, "bf16")]["decode"]
        assert sum(map(abs, errors)) / len(errors) < 0.06
