"""A campaign of inputs that nobody would type: no traceback, no 5xx, no plan of 10 s, and every answer keeps the laws.

    python tools/fuzz.py --seed 1 --count 5000                      # some minutes
    python tools/fuzz.py --seed 1 --count 1000000 --jobs 2 --counts out/fuzz.json
    python tools/fuzz.py --replay 1:42                              # one case again, with all that it said

A case is a seed and a number, so that a failure can be had again; what it was is in the lines of --failures, with the
shortest command that still fails. `fuzzing/laws.py` says what is checked.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import gc
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
os.environ["PYTHONPATH"] = str(ROOT / "src")  # this tree's package, in processes too
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a name of a model is a name, nothing is fetched
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]
MEMORY_DISK = Path("/dev/shm")  # where there is one, a case's files cost next to nothing

from fuzzing.cases import Case, case  # noqa: E402
from fuzzing.judge import Verdict, judge  # noqa: E402
from fuzzing.runners import Ran, limit_memory, run  # noqa: E402
from fuzzing.tally import BAD, Tally  # noqa: E402

CHUNK = 2500  # cases of a process: what one leaves in memory, the next does not have
EXAMPLES = 2  # of a kind of failure that are made short


@functools.cache
def _folder() -> Path:
    """The folder of this process's cases: empty before each of them."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def one(case: Case, checked: Counter[str]) -> tuple[Ran, Verdict]:
    """Run a case in an empty folder, and judge it."""
    folder = _folder()
    try:
        ran = run(case, folder)
        return ran, judge(case, ran, folder, checked)
    finally:
        for left in folder.iterdir():
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() and not left.is_symlink() else left.unlink()


def kind(problem: str) -> str:
    """A failure without its figures, by which failures are alike."""
    return re.sub(r"[\d.]+(e[-+]?\d+)?", "#", problem)[:140]


def shortest(failed: Case, verdict: Verdict) -> Sequence[str]:
    """The command with the flags left away that the failure does not need."""
    if failed.way not in ("cli", "process"):
        return failed.argv
    argv, wanted = failed.argv, kind(verdict.problems[0])
    changed = True
    while changed:
        changed = False
        for at, size in itertools.product(range(len(argv) - 1, 0, -1), (2, 1)):
            shorter = [*argv[:at], *argv[at + size :]]
            if len(shorter) < 2 or len(shorter) == len(argv):
                continue
            _, other = one(failed._replace(argv=shorter, way="cli"), Counter())
            if other.problems and kind(other.problems[0]) == wanted:
                argv, changed = shorter, True
                break
    return argv


def campaign(seed: int, start: int, count: int, failures: Path | None) -> Tally:
    """Run cases one after the other in this process."""
    limit_memory()
    gc.freeze()  # what is imported stays; a collection that goes through all of it finds nothing
    gc.set_threshold(100_000, 20, 20)
    tally, kinds = Tally(), Counter[str]()
    tally.runs.append(f"seed {seed}: {start} to {start + count - 1}")
    for number in range(start, start + count):
        drawn = case(seed, number)
        ran, verdict = one(drawn, tally.laws)
        tally.count(drawn.way, drawn.verb, verdict.outcome, ran.seconds, drawn.name)
        if verdict.outcome in BAD:
            kinds[kind(verdict.problems[0])] += 1
            if failures is not None and kinds[kind(verdict.problems[0])] <= EXAMPLES:
                quick = ran.seconds < 2
                line = {
                    "case": drawn.name,
                    "way": drawn.way,
                    "verb": drawn.verb,
                    "outcome": verdict.outcome,
                    "problems": verdict.problems[:5],
                    "argv": list(shortest(drawn, verdict) if quick else drawn.argv),
                    "body": drawn.body.decode("utf-8", "replace")[:2000],
                    "signal": drawn.signal,
                }
                with failures.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, ensure_ascii=True) + "\n")
    return tally


def chunks(options: argparse.Namespace, tally: Tally) -> None:
    """A campaign in processes of some thousand cases each; the counts are written after each of them."""
    starts = list(range(options.start, options.start + options.count, CHUNK))
    running: list[tuple[subprocess.Popen[bytes], Path, int]] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-counts-") as folder:
        while starts or running:
            while starts and len(running) < options.jobs:
                first = starts.pop(0)
                size = min(CHUNK, options.start + options.count - first)
                part = Path(folder) / f"{first}.json"
                command = [
                    sys.executable,
                    str(Path(__file__).resolve()),
                    "--seed",
                    str(options.seed),
                    "--start",
                    str(first),
                    "--inline",
                ]
                command += ["--count", str(size), "--counts", str(part)]
                command += ["--failures", str(options.failures)] if options.failures else []
                running.append((subprocess.Popen(command, stdout=subprocess.DEVNULL), part, first))
            process, part, first = running.pop(0)
            if process.wait() not in (0, 1) or not part.exists():
                tally.count("cli", "campaign", "crashed", 0.0, f"{options.seed}:{first}")
                print(f"the process of cases from {options.seed}:{first} ended with {process.returncode}", flush=True)
            else:
                tally.add(json.loads(part.read_text(encoding="utf-8")))
            if options.counts:
                tally.write(options.counts)
            print(f"{tally.total():,} inputs, {tally.total(*BAD):,} failures", file=sys.stderr, flush=True)


def replay(name: str) -> int:
    """One case, with everything that it said."""
    seed, _, number = name.partition(":")
    drawn = case(int(seed), int(number))
    shown: dict[str, Any] = {"way": drawn.way, "argv": list(drawn.argv), "body": drawn.body.decode("utf-8", "replace")}
    print(json.dumps({**shown, "files": {key: repr(data[:500]) for key, data in drawn.files.items()}}, indent=1))
    ran, verdict = one(drawn, Counter())
    print(f"code {ran.code}, {ran.seconds:.2f} s\n{ran.out[:1500]}\n{ran.err[:3000]}\n{ran.crash}\n{verdict}")
    return int(verdict.outcome in BAD)


def main() -> int:
    """Exit code 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--counts", type=Path, help="write the counts there as JSON, and beside it as Markdown")
    parser.add_argument("--failures", type=Path, help="add a line of JSON for each failure")
    parser.add_argument("--add", type=Path, action="append", default=[], help="counts of another campaign, added")
    parser.add_argument("--replay", metavar="SEED:NUMBER")
    parser.add_argument("--inline", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay:
        return replay(options.replay)
    tally = Tally()
    for path in options.add:
        tally.add(json.loads(path.read_text(encoding="utf-8")))
    if options.inline:
        tally = campaign(options.seed, options.start, options.count, options.failures)
    elif options.count:
        chunks(options, tally)
    if options.counts:
        tally.write(options.counts)
    print(tally.markdown())
    return int(bool(tally.total(*BAD)))


if __name__ == "__main__":
    sys.exit(main())
