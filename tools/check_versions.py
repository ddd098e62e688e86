"""Does it install and work with the lowest and with the newest versions of what it needs?

    python tools/check_versions.py                              # both, with this Python
    python tools/check_versions.py --python python3.12 --python python3.13 --tests

Each pair of a Python and a set of versions gets a virtual environment in a temporary folder. The project is installed
there with its extras, each command answers an example; with ``--tests`` the quick tests run. *Lowest* is every bound
of pyproject.toml taken at its word (``numpy>=2.1`` becomes ``numpy==2.1``), *newest* what the registry has today,
*constraints* what constraints.txt says.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("plot", "web", "hub", "parquet")
BOUND = re.compile(r"^([A-Za-z0-9_.-]+)(\[[^\]]*\])?>=([0-9.]+)")
EXAMPLES = {
    "analyze": ["analyze", "llama-3.1-8b", "--json"],
    "sweep": ["sweep", "llama-3.1-8b", "--batch-size", "1:64:x2", "-o", "points.parquet"],
    "search": ["search", "llama-3.1-8b", "--num-gpus", "1", "--mode", "aggregated", "--goodput", "tpot:50", "--json"],
    "sensitivity": ["sensitivity", "llama-3.1-8b", "--json"],
    "simulate": ["simulate", "llama-3.1-8b", "--num-prompts", "50", "--request-rate", "4", "--json"],
    "train": ["train", "llama-3.1-8b", "-dp", "8", "--zero", "1", "--json"],
    "show": ["show", "hardware"],
    "plot": ["analyze", "llama-3.1-8b", "--plot", "pictures"],
}


def requirements(extras: tuple[str, ...]) -> list[str]:
    """What pyproject.toml asks for, with these extras: ``["numpy>=2.1", …]``"""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]


def lowest(lines: list[str]) -> list[str]:
    """Each bound taken at its word: ``lowest(["numpy>=2.1"]) == ["numpy==2.1"]``"""
    pins = []
    for line in lines:
        match = BOUND.match(line)
        if match is None:
            raise SystemExit(f"pyproject.toml: {line!r} has no lower bound")
        pins.append(f"{match[1]}=={match[3]}")
    return pins


def page_answers(python: Path, folder: Path) -> str:
    """Start the page, ask for it and for its health; "" or what went wrong."""
    command = [str(python), "-m", "inferometer", "web", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            address = re.search(r"http://[^ ]+/", line)
            if address is None:
                return line + server.stdout.read()
            with urllib.request.urlopen(address[0], timeout=30) as page:
                return "" if b"inferometer" in page.read() else "the page is empty"
        except OSError as error:
            return str(error)
        finally:
            server.terminate()


def failures(python: Path, folder: Path, tests: bool) -> list[str]:
    """The commands that do not answer in an environment."""
    failed = []
    for name, arguments in EXAMPLES.items():
        ran = subprocess.run(
            [str(python), "-m", "inferometer", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        good = ran.returncode == 0 and (arguments[-1] != "--json" or json.loads(ran.stdout))
        if not good:
            failed.append(f"{name}: {ran.stderr.strip().splitlines()[-1:] or ran.returncode}")
    if trouble := page_answers(python, folder):
        failed.append(f"web: {trouble.strip().splitlines()[-1]}")
    if tests:
        command = [str(python), "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", "tests"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode:
            failed += [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))][:20] or [
                "tests"
            ]
    return failed


def check(python: str, versions: str, tests: bool) -> list[str]:
    """Install and try one pair; the failures."""
    extras = (*EXTRAS, "dev") if tests else EXTRAS
    with tempfile.TemporaryDirectory(prefix="versions-") as name:
        folder = Path(name)
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        own = folder / "venv" / "bin" / "python"
        install = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if versions == "lowest":  # those of the tests themselves may be newer
            (folder / "pins.txt").write_text("\n".join(lowest(requirements(EXTRAS))) + "\n")
            install += ["-c", str(folder / "pins.txt")]
        elif versions == "constraints":
            install += ["-c", str(ROOT / "constraints.txt")]
        ran = subprocess.run([*install, f"{ROOT}[{','.join(extras)}]"], capture_output=True, text=True, check=False)
        if ran.returncode:
            return [f"pip: {line}" for line in ran.stderr.splitlines() if line.startswith("ERROR")][:3]
        return failures(own, folder, tests)


def main() -> None:
    """Print a line for each pair; exit 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="an interpreter; several times")
    parser.add_argument("--versions", action="append", choices=["lowest", "newest", "constraints"])
    parser.add_argument("--tests", action="store_true", help="run the quick tests, too")
    options = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)
    bad = 0
    for python in options.python or [sys.executable]:
        for versions in options.versions or ["lowest", "newest"]:
            began = time.monotonic()
            failed = check(python, versions, options.tests)
            bad += bool(failed)
            print(
                f"{python} {versions}: {'; '.join(failed) or 'all answer'} ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
