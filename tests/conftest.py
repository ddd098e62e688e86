"""What the tests share: a way to run the command in this process, and where the reference files lie."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

from inferometer import Report, analyze
from inferometer.cli import main

ROOT = Path(__file__).parent.parent
settings.register_profile("ci", derandomize=True)  # the same examples every time; elsewhere new ones are tried
if os.environ.get("CI"):
    settings.load_profile("ci")
for name in ("COLUMNS", "LINES"):  # GNU readline sets them in pytest's process, and workers inherit them
    os.environ.pop(name, None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is imported and collected stays to the end: garbage is looked for among what tests make, seldom."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)
        gc.enable()


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, all of it, as JSON."""
        return json.loads(self.out)


def command(*args: str) -> Ran:
    """``command("analyze", "llama-3.1-8b", "--json").json["metrics"]``: a command as a shell would see it."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stopped:
        main([str(a) for a in args])
    code = stopped.value.code
    return Ran(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def refused(ran: Ran, *parts: str) -> None:
    """Exit code 2, one line on stderr that has all the parts, no traceback and no half a result."""
    assert ran.code == 2, (ran.code, ran.err, ran.out[:200])
    assert ran.out == "" and ran.err.count("\n") == 1 and ran.err.startswith("inferometer: "), ran.err
    assert "Traceback" not in ran.err
    for part in parts:
        assert part in ran.err, f"{part!r} is not in {ran.err!r}"


@pytest.fixture(scope="session")
def run() -> Callable[..., Ran]:
    return command


@cache
def _report(model: str, kwargs: tuple[tuple[str, Any], ...]) -> Report:
    return analyze(model, **dict(kwargs))


@pytest.fixture(scope="session")
def report() -> Callable[..., Report]:
    """``report("llama-3.1-8b", batch_size=8)``: an analysis, made once however many tests look at it."""
    return lambda model, **kwargs: _report(model, tuple(sorted(kwargs.items())))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of optional reference files: not part of the repository, and no claim of the README rests on them."""
    folder = Path(os.environ.get("INFEROMETER_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("optional: other projects' files, which INFEROMETER_SHARED names; no claim rests on them")
    return folder
