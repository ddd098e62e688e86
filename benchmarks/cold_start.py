"""CPU seconds of a cold `inferometer analyze … --json` beyond a bare interpreter's start. Prints; asserts nothing."""

from __future__ import annotations

import compileall
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import inferometer

RUNS = 9
COMMAND = ["analyze", "llama-3.1-8b", "--gpu", "h200", "--batch-size", "8", "--json"]


def cpu_seconds(args: list[str]) -> float:
    """User and system time of one process."""
    before = os.times()
    subprocess.run([sys.executable, *args], stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


def main() -> None:
    # An installed package is compiled; here that may be switched off, and then every start would compile it anew.
    compileall.compile_dir(str(Path(inferometer.__file__).parent), quiet=1)
    bare = statistics.median(cpu_seconds(["-c", "pass"]) for _ in range(RUNS))
    started = time.perf_counter()
    cold = statistics.median(cpu_seconds(["-m", "inferometer", *COMMAND]) for _ in range(RUNS))
    wall = (time.perf_counter() - started) / RUNS
    print(f"bare interpreter      {bare:.3f} s CPU")
    print(f"inferometer analyze   {cold:.3f} s CPU, {wall:.3f} s wall")
    print(f"beyond the bare start {cold - bare:.3f} s CPU (aim: under 0.3)")


if __name__ == "__main__":
    main()
