"""How a process ends: exit codes, signals, faults of our own, and what --quiet and --debug change."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran, refused

from inferometer.cli import exits

Run = Callable[..., Ran]
MODEL = "llama-3.1-8b"
SLEEPING = """
import sys, time
from inferometer.cli import main
def sleep(*args, **kwargs):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("tidied up", flush=True)
import inferometer.inference.request as request
request.build_request = sleep
main(["analyze", "llama-3.1-8b"])
"""


def ended_by(number: int, code: str = SLEEPING, before: str = "") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a process that gets a signal while its command is at work."""
    process = subprocess.Popen(
        ["bash", "-c", f'{before} exec "{sys.executable}" -c "$CODE"'],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CODE": code},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_it_tidily(number: int, code: int) -> None:
    expected = "inferometer: interrupted\n" if number == signal.SIGINT else ""
    assert ended_by(number) == (code, "tidied up\n", expected)


@pytest.mark.slow
def test_nohup_is_respected() -> None:
    after = SLEEPING.replace("time.sleep(60)", "time.sleep(0.5); print('on', flush=True); sys.exit(7)")
    assert ended_by(signal.SIGHUP, after, "trap '' HUP;") == (7, "on\ntidied up\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["click", "msgspec", "inferometer.cli.analyze", "inferometer.costs.roofline"])
def test_ctrl_c_while_modules_are_loaded(module: str) -> None:
    """The signal comes while that module is looked for."""
    code = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from inferometer.cli import main
main(["analyze", "llama-3.1-8b"])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (130, "") and ran.stderr in ("", "inferometer: interrupted\n")


def test_nothing_is_imported_before_main_is_at_work() -> None:
    code = "import sys; before = set(sys.modules); import inferometer.cli; print(sorted(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=_path(), timeout=60)
    assert set(eval(ran.stdout)) <= {"__future__", "types", "inferometer", "inferometer.cli"}, ran.stderr


def _path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(exits.__file__).parents[2])}


def test_an_interrupt_that_python_wrapped_is_one() -> None:
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as stop:
            raise RuntimeError("Error calling __set_name__") from stop
    except RuntimeError as error:
        assert exits._from_interrupt(error)
    assert not exits._from_interrupt(ValueError())


# ------------------------------------------------------------------ faults


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("inferometer.inference.request.build_request", fail)


@pytest.mark.usefixtures("broken")
def test_a_fault_is_three_lines_and_says_how_to_report_it(run: Run) -> None:
    ran = run("analyze", MODEL, "--hf-token", "hf_x", "-q", "a b")
    first, second, third = ran.err.splitlines()
    assert (ran.code, ran.out) == (70, "")
    assert re.fullmatch(  # the last line of ours: what failed is a test's
        r"inferometer: internal error: ZeroDivisionError: division by zero \(cli/analyze\.py, line \d+\)", first
    )
    assert re.match(r"inferometer \d+\.\d+\S*, Python 3\.\d+\.\d+\S*, .*the project's issue tracker", second)
    assert third == "  inferometer analyze llama-3.1-8b --hf-token SECRET -q 'a b' --debug"


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("args", [("--debug", "analyze", MODEL), ("analyze", MODEL, "--debug")])
def test_debug_shows_where(run: Run, args: tuple[str, ...]) -> None:
    ran = run(*args)
    assert ran.code == 70 and ran.err.startswith("Traceback") and "in fail" in ran.err
    assert ran.err.endswith(f"inferometer {' '.join(a for a in args if a != '--debug')} --debug\n")


def test_debug_shows_where_a_request_is_refused(run: Run) -> None:
    ran = run("analyze", "nonsense", "--debug")
    assert ran.code == 2 and ran.err.startswith("Traceback") and "\ninferometer: unknown model 'nonsense'" in ran.err
    refused(run("analyze", "nonsense"))


def test_secrets_are_not_repeated() -> None:
    args = ["bench", "--api-key", "k1", "--hf-token=k2", "--model", "m"]
    assert exits._without_secrets(args) == ["bench", "--api-key", "SECRET", "--hf-token=SECRET", "--model", "m"]


# ------------------------------------------------------------------ warnings, --quiet


def test_warnings_of_libraries_are_not_for_users(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from inferometer.inference.request import build_request

    def warned(*args: Any, **kwargs: Any) -> Any:
        warnings.warn("overflow encountered in multiply", RuntimeWarning, stacklevel=1)
        return build_request(*args, **kwargs)

    monkeypatch.setattr("inferometer.inference.request.build_request", warned)
    assert run("analyze", MODEL, "--json").err == ""


@pytest.mark.parametrize("before", [True, False])
def test_quiet_is_results_alone(run: Run, before: bool, tmp_path: Path) -> None:
    args = ["analyze", MODEL, "--input-len", "200000", "--json"]
    loud, quiet = run(*args), run(*(["--quiet", *args] if before else [*args, "--quiet"]))
    assert loud.err.startswith("warning: ") and (quiet.err, quiet.out) == ("", loud.out)
    assert run(*args, "--quiet", "-o", str(tmp_path / "x.json")).err == ""
    refused(run("--quiet", "analyze", "nonsense"), "unknown model")
    assert run("analyze", "llama-3.1-405b", "--quiet", "--json").code == 1
