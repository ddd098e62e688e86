"""What hosts do to the first token: mixtures with prompts of 1,024 tokens and at most 4 requests under way.

    python benchmarks/hosts.py            prints the table of docs/accuracy/hosts.md
    python benchmarks/hosts.py --write    puts it there

There the time to the first token is mostly launches. Every row is simulated with the engine's launches at several
speeds of the host; the speed that fits the other models of the engine best predicts a model's own rows (leave one
model out). The rows are those of `serving.py --set silicon`.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import accuracy_page
import serving

from inferometer.specs.hosts import host

FACTORS = (0.5, 0.63, 0.8, 0.9, 1.0, 1.12, 1.25, 1.6, 2.0)  # on the launch time of the default host
DENSE = ("Llama", "Qwen3-32B")
PROMPT, UNDER_WAY = 1024, 4
MATTERS = 1.3  # a host four times as slow makes the first token later by this factor at least


class Rated(NamedTuple):
    """A row: relative error of its mean time to first token at each factor; empty where it was not answered."""

    engine: str
    model: str
    errors: tuple[float, ...]


def chosen_rows() -> list[serving.Case]:
    """Mixtures with short prompts and few requests under way."""
    return [
        case
        for case in serving.silicon()
        if not any(name in case.model for name in DENSE) and case.build[1] == PROMPT and case.build[-1] <= UNDER_WAY
    ]


def rated(case: serving.Case) -> Rated:
    """The row under every factor."""
    errors = []
    for factor in FACTORS:
        profile = f"server:launch={host().launch * factor}"
        off = serving.run(case._replace(options={**case.options, "host_profile": profile})).error("ttft")
        if off is not None:
            errors.append(off)
    model = case.model.rpartition("/")[2]
    return Rated(case.options["engine"].partition("@")[0], model, tuple(errors))


def left_out(rows: list[Rated], model: str) -> int:
    """The factor that meets the other models best, an index of `FACTORS`: by the rows that launches matter to.

    Prompts within CUDA graphs say nothing about a host. The median decides, since some rows are off by factors.
    """
    others = [row.errors for row in rows if row.model != model and row.errors]
    sensitive = [errors for errors in others if (1 + errors[-1]) / (1 + errors[0]) > MATTERS]

    def miss(index: int) -> tuple[float, float]:
        return statistics.median(abs(errors[index]) for errors in sensitive), abs(FACTORS[index] - 1)

    return min(range(len(FACTORS)), key=miss)


def table(rows: list[Rated]) -> list[str]:
    """By engine, and by model within it: as shipped, and with the host fitted to the other models."""
    lines = [
        "| engine, model | rows | answered | shipped: median | bias | host fitted without it | median | bias |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    by_engine: dict[str, list[Rated]] = defaultdict(list)
    for row in rows:
        by_engine[row.engine].append(row)
    shipped = FACTORS.index(1.0)
    for engine, part in sorted(by_engine.items()):
        unseen: list[float] = []
        inner = []
        for model in sorted({row.model for row in part}):
            own = [row for row in part if row.model == model and row.errors]
            index = left_out(part, model)
            offs = [row.errors[index] for row in own]
            unseen += offs
            count = sum(row.model == model for row in part)
            now = _middle([row.errors[shipped] for row in own])
            inner.append(f"| {model} | {count} | {len(own)} | {now} | × {FACTORS[index]:g} | {_middle(offs)} |")
        now = _middle([row.errors[shipped] for row in part if row.errors])
        answered = sum(bool(row.errors) for row in part)
        lines += [f"| **{engine}** | {len(part)} | {answered} | {now} | | {_middle(unseen)} |", *inner]
    return lines


def _middle(offs: list[float]) -> str:
    return f"{statistics.median(map(abs, offs)):.1%} | {statistics.fmean(offs):+.1%}" if offs else "– | –"


def report() -> str:
    """The table of docs/accuracy/hosts.md; every row is simulated under all factors."""
    with ProcessPoolExecutor(2) as pool:
        return "\n".join(table(list(pool.map(rated, chosen_rows(), chunksize=4))))


def main() -> None:
    """Print the table; with ``--write`` put it into docs/accuracy/hosts.md."""
    parser = argparse.ArgumentParser(description="What hosts do to the first token.")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    text = report()
    print(text)
    if given.write:
        accuracy_page.write(hosts=text)


if __name__ == "__main__":
    main()
