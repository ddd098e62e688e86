"""What a newcomer sees first: the bare command, --help, and answers to slips of the keyboard."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Ran, refused

from inferometer.cli.commands import COMMANDS

Run = Callable[..., Ran]


def test_the_bare_command_greets(run: Run) -> None:
    ran = run()
    commands = [line.split()[1] for line in ran.out.splitlines() if line.startswith("  inferometer ")]
    assert (ran.code, ran.err) == (0, "") and len(commands) == 3 and set(commands) <= set(COMMANDS)
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_has_one_whole_line(run: Run, monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = run(flag)
    lines = ran.out.partition("Commands:\n")[2].splitlines()
    assert (ran.code, ran.err, len(lines)) == (0, "", len(COMMANDS)) and "..." not in "".join(lines)
    for line, (name, text) in zip(lines, COMMANDS.items(), strict=True):
        assert line.split(maxsplit=1) == [name, text] and len(line) <= 80


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_of_a_command(run: Run, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Fits 80 columns, ends with examples, and says what every command takes."""
    monkeypatch.setenv("COLUMNS", "80")
    ran = run(verb, "-h")
    assert (ran.code, ran.err) == (0, "") and ran == run(verb, "--help")
    assert max(map(len, ran.out.splitlines())) <= 80
    examples = ran.out.partition("\nExamples:\n")[2]
    assert 2 <= examples.count(f"  inferometer {verb} ") <= 4
    assert all(flag in ran.out for flag in ("Common options:", "--quiet", "--debug", "--config FILE", "--save-config"))


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_of_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Fits 40 columns but for names of flags, which are never broken; texts stand below them."""
    monkeypatch.setenv("COLUMNS", "40")
    lines = run(verb, "-h").out.splitlines()
    assert [line for line in lines if len(line) > 40 and not line.startswith("  -")] == []
    assert "        Show this message." in lines


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["analyse"], "unknown command 'analyse'; did you mean analyze?"),
        (["zzz"], "allowed: analyze, bench"),
        (["analyze", "m", "--batchsize", "8"], "unknown option '--batchsize'; did you mean --batch-size?"),
        (["analyze", "m", "--batch_size", "8"], "did you mean --batch-size?"),
        (["analyze", "m", "--tensor-paralel-size", "8"], "did you mean --tensor-parallel-size"),
        (["--quite", "analyze", "m"], "did you mean --quiet?"),
        (["analyze"], "MODEL"),
    ],
)
def test_slips(run: Run, args: list[str], expected: str) -> None:
    refused(run(*args), expected)
