"""Counts of a campaign by verb and outcome, its failures and its slowest cases; two campaigns add up."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

OUTCOMES = ("feasible", "infeasible", "refused", "interrupted", "crashed", "law broken", "too slow")
ANSWERED = ("feasible", "infeasible", "law broken")
BAD = ("crashed", "law broken", "too slow")
SLOWEST = 10


class Tally:
    """``tally.count("cli", "analyze", "feasible", 0.03, "1:42")``"""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()  # way, verb, outcome
        self.laws: Counter[str] = Counter()  # checks made, by law
        self.runs: list[str] = []  # "seed 1: 0 to 5000"
        self.slowest: list[tuple[float, str, str]] = []
        self.cpu_seconds = 0.0

    def count(self, way: str, verb: str, outcome: str, seconds: float, name: str) -> None:
        """One case more."""
        self.counts[way, verb, outcome] += 1
        self.cpu_seconds += seconds
        if len(self.slowest) < SLOWEST or seconds > self.slowest[-1][0]:
            self.slowest = sorted([*self.slowest, (round(seconds, 3), verb, name)], reverse=True)[:SLOWEST]

    def total(self, *outcomes: str, verb: str = "") -> int:
        """How many cases had one of the outcomes."""
        return sum(n for (_, v, o), n in self.counts.items() if o in (outcomes or OUTCOMES) and verb in ("", v))

    def add(self, data: dict[str, Any]) -> None:
        """Add what `to_dict` of another campaign gave."""
        for way, verb, outcome, number in data["counts"]:
            self.counts[way, verb, outcome] += number
        self.laws.update(data["laws"])
        self.runs += data["runs"]
        self.cpu_seconds += data["cpu_seconds"]
        self.slowest = sorted([*self.slowest, *map(tuple, data["slowest"])], reverse=True)[:SLOWEST]

    def to_dict(self) -> dict[str, Any]:
        """The counts as JSON has them."""
        return {
            "inputs": self.total(),
            "answered": self.total(*ANSWERED),
            "counts": [[*key, number] for key, number in sorted(self.counts.items())],
            "laws": dict(sorted(self.laws.items())),
            "runs": self.runs,
            "slowest": self.slowest,
            "cpu_seconds": round(self.cpu_seconds, 1),
        }

    def write(self, path: Path) -> None:
        """The counts as JSON, and beside them as Markdown."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=1), encoding="utf-8")
        path.with_suffix(".md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        """A table of verbs by outcomes, the laws that were checked, and what was slowest."""
        verbs = sorted({verb for _, verb, _ in self.counts})
        used = [o for o in OUTCOMES if self.total(o)]
        lines = [
            f"{self.total():,} inputs, {self.total(*ANSWERED):,} answered, {self.cpu_seconds:,.0f} s of CPU",
            "",
            f"| verb | {' | '.join(used)} | all |",
            f"|---|{'---|' * (len(used) + 1)}",
        ]
        for verb in verbs:
            cells = [f"{self.total(outcome, verb=verb):,}" for outcome in used]
            lines.append(f"| {verb} | {' | '.join(cells)} | {self.total(verb=verb):,} |")
        lines.append(f"| all | {' | '.join(f'{self.total(o):,}' for o in used)} | {self.total():,} |")
        ways: Counter[str] = Counter()
        for (way, _, _), number in self.counts.items():
            ways[way] += number
        lines += ["", f"By way: {', '.join(f'{way} {number:,}' for way, number in sorted(ways.items()))}"]
        lines += [
            "",
            "| law | checked |",
            "|---|---|",
            *(f"| {name} | {n:,} |" for name, n in sorted(self.laws.items())),
        ]
        lines += ["", "| CPU s | verb | case |", "|---|---|---|"]
        lines += [f"| {seconds:.2f} | {verb} | {name} |" for seconds, verb, name in self.slowest]
        return "\n".join(lines) + "\n"
