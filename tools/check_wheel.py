"""Does the wheel alone work? Installs it into empty environments and runs what the pages show, word for word.

    make dist && python tools/check_wheel.py --python python3.11 --python python3.12 --python python3.13
    python tools/check_wheel.py --pages README.md,docs,CONTRIBUTING.md        # more pages than README and tutorial

The files of the wheel must be those of src/inferometer that git knows. For each Python there are two environments: the
wheel alone, where a documented command does what the page says or names the extra that it lacks; and the wheel with
every extra but PyTorch's, where it does what the page says, the web page answers, and the notebooks show in a kernel
what they are committed with.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from check_versions import page_answers  # noqa: E402
from test_docs import Command, commands, examples  # noqa: E402

from inferometer.cli.commands import COMMANDS  # noqa: E402

PAGES = "README.md,docs/tutorial.md"
EXTRAS = "plot,web,hub,cluster,parquet,notebook"  # all but `profile`: PyTorch is gigabytes
LACKS = re.compile(r"pip install 'inferometer\[(\w+)\]'")
NOT_OURS = ("pip", "setuptools", "_distutils_hack", "distutils-precedence")


class Trial(NamedTuple):
    """What happened in one environment: failures, commands by the extra that they lack, the installation."""

    failures: list[str]
    answered: int
    lacking: dict[str, int]
    size: int
    seconds: float


def contents(wheel: Path) -> list[str]:
    """What is wrong with the files of a wheel."""
    tracked = subprocess.run(
        ["git", "ls-files", "src/inferometer"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    wanted = {path.removeprefix("src/") for path in tracked}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    return [f"{name} is missing" for name in sorted(wanted - packed)] + [
        f"{name} does not belong there" for name in sorted(packed - wanted)
    ]


def environment(python: str, wheel: Path, extras: str, folder: Path) -> tuple[Path, int, float]:
    """An environment with the wheel: its Python, bytes and seconds of the installation."""
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    own = folder / "venv" / "bin" / "python"
    began = time.monotonic()
    install = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, f"{wheel}[{extras}]" if extras else str(wheel)], check=True)
    seconds = time.monotonic() - began
    places = [
        place for place in (folder / "venv" / "lib").glob("*/site-packages/*") if not place.name.startswith(NOT_OURS)
    ]
    files = [file for place in places for file in (place.rglob("*") if place.is_dir() else [place])]
    return own, sum(file.stat().st_size for file in files if file.is_file()), seconds


def documented(pages: list[str], folder: Path) -> list[Command]:
    """The commands of pages in their order; files that pages show are put where the commands look for them."""
    for example in examples("toml", "csv"):
        if title := re.match(r"# (\S+\.(?:toml|csv))\n", example.text):
            path = folder / title[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(example.text, encoding="utf-8")
    shown = [example for example in examples("console") if example.page.startswith(tuple(pages))]
    return [command for example in shown for command in commands(example)]


def trial(python: str, wheel: Path, extras: str, pages: list[str]) -> Trial:
    """Install and run everything in one environment."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        folder = Path(name)
        own, size, seconds = environment(python, wheel, extras, folder)
        program = str(own.parent / "inferometer")
        helps = [Command([verb, "--help"], 0, "Usage", []) for verb in COMMANDS]
        failures, lacking, answered = [], dict[str, int](), 0
        for command in [Command(["--version"], 0, "", []), *helps, *documented(pages, folder)]:
            ran = subprocess.run([program, *command.args], cwd=folder, capture_output=True, text=True, check=False)
            said = " ".join((ran.stdout + ran.stderr).split())
            extra = LACKS.search(ran.stderr) if ran.returncode == 2 else None
            if ran.returncode == command.code and command.expected in said:
                answered += 1
            elif extra and extra[1] not in extras.split(","):
                lacking[extra[1]] = lacking.get(extra[1], 0) + 1
            else:
                failures.append(
                    f"inferometer {' '.join(command.args)}: exit {ran.returncode}: {ran.stderr.strip()[-300:]}"
                )
        if "web" in extras and (trouble := page_answers(own, folder)):
            failures.append(f"web: {trouble.strip().splitlines()[-1]}")
        if "notebook" in extras:
            ran = subprocess.run(
                [own, ROOT / "tools" / "notebooks.py", "--check"], capture_output=True, text=True, check=False
            )
            if ran.returncode:
                failures += [line for line in (ran.stdout or ran.stderr).splitlines() if "as committed" not in line]
        return Trial(failures, answered, lacking, size, seconds)


def main() -> None:
    """Print two lines for each Python; exit 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="an interpreter; several times")
    parser.add_argument("--wheel", help="by default the newest in dist/")
    parser.add_argument("--pages", default=PAGES, help="how their paths begin, separated by commas")
    options = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)
    shown = [example.page for example in examples("console")]
    if unknown := [page for page in options.pages.split(",") if not any(name.startswith(page) for name in shown)]:
        raise SystemExit(f"no page with commands begins with {unknown[0]!r}")
    wheels = sorted((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    wheel = Path(options.wheel).resolve() if options.wheel else next(reversed(wheels), None)
    if wheel is None:
        raise SystemExit("there is no wheel in dist/: `make dist` makes it")
    bad = contents(wheel)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB; {'; '.join(bad) or 'the files of src/inferometer'}")
    for python in options.python or [sys.executable]:
        for extras in ("", EXTRAS):
            result = trial(python, wheel, extras, options.pages.split(","))
            bad += result.failures
            lacking = ", ".join(f"{count} need [{extra}]" for extra, count in sorted(result.lacking.items()))
            print(
                f"{python}{f' [{extras}]' if extras else ''}: {result.size / 1e6:.0f} MB in {result.seconds:.0f} s; "
                f"{result.answered} commands answer{f', {lacking}' if lacking else ''}"
                + "".join(f"\n  {line}" for line in result.failures),
                flush=True,
            )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
