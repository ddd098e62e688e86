"""The protocol by which shells ask for completions, and what they get."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from inferometer.specs import catalog


def completed(line: str, shell: str = "bash", code: str = "") -> tuple[list[str], str]:
    """What a shell gets for the last part of a line, and what the process says on stderr."""
    parts = line.split(" ")
    number = parts[-1] if shell == "fish" else str(len(parts) - 1)
    env = {**os.environ, "_INFEROMETER_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": number}
    command = ["-c", code] if code else ["-m", "inferometer"]
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, env=env)
    assert ran.returncode == 0
    return ran.stdout.splitlines(), ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("inferometer sen", ["plain,sensitivity"]),
        ("inferometer analyze qwen3-30", ["plain,qwen3-30b-a3b"]),
        ("inferometer analyze ./conf", ["file,./conf"]),
        ("inferometer analyze --gpu h20", ["plain,h20", "plain,h200", "plain,h200-nvl"]),
        ("inferometer analyze --engine v", ["plain,vllm"]),
        ("inferometer analyze --frontend h", ["plain,http"]),
        ("inferometer analyze --batch-s", ["plain,--batch-size"]),
        ("inferometer analyze --config pl", ["file,pl"]),
        ("inferometer analyze --plot pl", ["dir,pl"]),
        ("inferometer sweep x -q fp8,nv", ["plain,fp8,nvfp4"]),
        ("inferometer show hard", ["plain,hardware"]),
        ("inferometer show usecases chat", ["plain,chatbot"]),
    ],
)
def test_bash(line: str, expected: list[str]) -> None:
    lines, err = completed(line)
    assert set(expected) <= set(lines) and err == ""
    if len(expected) == 1:
        assert len([text for text in lines if text == expected[0]]) == 1


@pytest.mark.slow
def test_zsh_and_fish() -> None:
    assert completed("inferometer analyze --gpu b20", "zsh")[0][:3] == ["plain", "b200", "_"]
    assert "plain,b200" in completed("inferometer analyze --gpu b20", "fish")[0]


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str) -> None:
    env = {**os.environ, "_INFEROMETER_COMPLETE": f"{shell}_source"}
    ran = subprocess.run(
        [sys.executable, "-m", "inferometer"], capture_output=True, text=True, timeout=60, env=env, check=True
    )
    assert f"_INFEROMETER_COMPLETE={shell}_complete" in ran.stdout


@pytest.mark.slow
def test_every_model_is_offered_and_nothing_heavy_is_loaded() -> None:
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(sorted(m for m in sys.modules if m.count('.') < 2), file=sys.stderr))\n"
        "from inferometer.cli import main\n"
        "main()"
    )
    lines, err = completed("inferometer analyze ", code=code)
    assert [line.removeprefix("plain,") for line in lines if line.startswith("plain,")] == catalog.names("models")
    assert not {"numpy", "rich", "inferometer.costs", "inferometer.inference", "inferometer.network"} & set(eval(err))
