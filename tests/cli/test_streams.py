"""Real processes whose streams are closed, full, broken or of another encoding, and whose surroundings are poor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran

from inferometer.cli.streams import REPLACEMENTS, plain_characters

Run = Callable[..., Ran]
ANALYZE = "analyze llama-3.1-8b --gpu h200"
JSON = f"{ANALYZE} --json"
WARNED = f"{JSON} --input-len 200000"  # says something on stderr


def shell(line: str, cwd: Path | None = None, **environment: str | None) -> subprocess.CompletedProcess[bytes]:
    """A line of bash in which ``inferometer`` is this one; a variable that is None is not set."""
    env = {**os.environ, **environment}
    function = f'inferometer() {{ "{sys.executable}" -m inferometer "$@"; }}\n'
    kept = {name: value for name, value in env.items() if value is not None}
    return subprocess.run(["bash", "-c", function + line], capture_output=True, timeout=120, env=kept, cwd=cwd)


SEVERAL = """
import sys
from inferometer.cli import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as stopped:
        for stream in (sys.stdout, sys.stderr):
            print(f"\\0{stopped.code or 0}", end="\\0", file=stream, flush=True)
"""


def several(*commands: str, **environment: str | None) -> list[tuple[int, str, str]]:
    """Commands one after the other in one process of some surroundings: their exit codes, and what they printed."""
    kept = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    ran = subprocess.run([sys.executable, "-c", SEVERAL, *commands], capture_output=True, timeout=120, env=kept)
    encoding = kept.get("PYTHONIOENCODING", "utf-8")
    (*texts, end), (*errors, said) = (stream.decode(encoding).split("\0") for stream in (ran.stdout, ran.stderr))
    assert (ran.returncode, end, said) == (0, "", "") and texts[1::2] == errors[1::2], ran.stderr
    assert len(texts) == 2 * len(commands)
    return list(zip(map(int, texts[1::2]), texts[::2], errors[::2], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("command", [ANALYZE, JSON, "show hardware", "--help", "sweep llama-3.1-8b --csv"])
@pytest.mark.parametrize(("stdout", "why"), [(">&-", "it is closed"), ("> /dev/full", "No space left on device")])
def test_a_result_that_cannot_be_written_is_an_error(command: str, stdout: str, why: str) -> None:
    ran = shell(f"inferometer {command} {stdout}")
    assert (ran.returncode, ran.stderr.decode()) == (2, f"inferometer: stdout cannot be written: {why}\n")


@pytest.mark.slow
@pytest.mark.parametrize("stderr", ["2>&-", "2> /dev/full", "<&- 2>&-"])
def test_notes_that_cannot_be_written_do_not_matter(stderr: str) -> None:
    ran = shell(f"inferometer {WARNED} {stderr}")
    assert (ran.returncode, ran.stderr) == (0, b"") and json.loads(ran.stdout)["warnings"]
    assert shell(f"inferometer analyze nonsense {stderr}").returncode == 2


@pytest.mark.slow
def test_a_file_is_not_taken_for_a_closed_stream(tmp_path: Path) -> None:
    ran = shell(f"inferometer {WARNED} -o out.json >&- 2>&- <&-", cwd=tmp_path)
    assert ran.returncode == 0 and json.loads((tmp_path / "out.json").read_text())["feasible"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["sweep llama-3.1-8b --batch-size 1:3000:1 --csv", "show models --json", ANALYZE, "analyze --help"]
)
def test_a_reader_that_goes_away_is_no_error(command: str) -> None:
    ran = shell(f"set -o pipefail; inferometer {command} | head -1")
    assert (ran.returncode, ran.stderr) == (0, b"") and ran.stdout.count(b"\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "commands"),
    [
        ("ascii", (ANALYZE, JSON, "sweep --help", "show usecases", "analyze h×y", "sensitivity a→b")),
        ("cp1252", (ANALYZE, "analyze h×y", "sensitivity a→b")),
        ("latin-1", ("sweep --help", "sensitivity a→b")),
        ("utf-8", (ANALYZE, "sensitivity a→b")),
    ],
)
def test_every_encoding_gets_characters_that_it_has(encoding: str, commands: tuple[str, ...]) -> None:
    ran = several(*commands, PYTHONIOENCODING=encoding)
    for command, (code, text, sentence) in zip(commands, ran, strict=True):
        assert code == (2 if sentence else 0) and bool(text) != bool(sentence) and "Traceback" not in sentence
        assert "h×y" not in command or ("hxy" if encoding == "ascii" else "h×y") in sentence
        assert command != ANALYZE or ("1 x NVIDIA" if encoding == "ascii" else "1 × NVIDIA") in text
        if command == JSON:
            assert json.loads(text)["feasible"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"HOME": None, "USER": None, "LOGNAME": None, "TERM": None},
        {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/proc/no", "MPLCONFIGDIR": "/proc/no", "HF_HOME": "/proc/no"},
        {"TERM": "dumb", "TMPDIR": "/nonexistent"},
        {"COLUMNS": "x"},
    ],
    ids=lambda environment: ",".join(f"{k}={v}" for k, v in environment.items()),
)
def test_poor_surroundings(environment: dict[str, str | None]) -> None:
    ran = several(ANALYZE, "analyze --help", "show engines", **environment)
    assert [(code, len(text) > 500, error) for code, text, error in ran] == [(0, True, "")] * 3


@pytest.mark.parametrize("columns", ["40", "80", "300", "0", "-5", "x", ""])
def test_poor_widths(run: Run, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for line in (ANALYZE, "analyze --help", "show engines"):
        ran = run(*line.split())
        assert (ran.code, ran.err) == (0, "") and len(ran.out) > 500


@pytest.mark.slow
def test_pictures_need_no_cache(tmp_path: Path) -> None:
    one = "inferometer sensitivity llama-3.1-8b --gpu h200 --size --target tpot:4 --plot out --quiet"
    ran = shell(one, cwd=tmp_path, MPLCONFIGDIR="/proc/no", HOME="/proc/no")
    assert (ran.returncode, ran.stderr) == (0, b"") and (tmp_path / "out" / "size.png").exists()


@pytest.mark.slow
def test_folders_that_are_gone_or_read_only(tmp_path: Path) -> None:
    ran = shell(
        f"mkdir gone && cd gone && rmdir ../gone && inferometer {JSON} && inferometer {JSON} -o x", cwd=tmp_path
    )
    assert ran.returncode == 2 and json.loads(ran.stdout)["feasible"]
    assert ran.stderr == b"inferometer: x cannot be written: No such file or directory\n"
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    assert shell(f"inferometer {JSON}", cwd=folder).returncode == 0


@pytest.mark.slow
def test_colours(tmp_path: Path) -> None:
    assert b"\x1b[" not in shell(f"inferometer {ANALYZE}").stdout
    assert b"\x1b[" in shell(f"inferometer {ANALYZE}", FORCE_COLOR="1", TERM="xterm-256color").stdout
    both = shell(f"inferometer {ANALYZE}", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color").stdout
    assert b"\x1b[3" not in both, "bold is no colour"


def test_characters_without_a_replacement_are_escaped_as_in_json() -> None:
    text = '"×→é😀\udcff"'
    plain, end = plain_characters(UnicodeEncodeError("ascii", text, 1, len(text) - 1, ""))
    assert (plain, end) == ("x->\\u00e9\\ud83d\\ude00\\udcff", len(text) - 1)
    assert json.loads(f'"{plain}"') == "x->é😀\udcff"
    assert all(value.isascii() for value in REPLACEMENTS.values())
