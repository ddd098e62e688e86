"""Does it pick the right layout? Servers that were measured in several layouts, ranked by us and by what was measured.

    python benchmarks/ranking.py                    prints the table for every tenth group
    python benchmarks/ranking.py --all              all groups: the table of docs/accuracy/ranking.md
    python benchmarks/ranking.py --write            puts it there
    python benchmarks/ranking.py --groups all.csv   every group, with what was picked
    python benchmarks/ranking.py --only sglang/b200 all groups of an engine on a GPU; may be given several times

A group is one model, GPU, engine and version, day, client, precision and pair of lengths, drafts or none, with as
many requests under way for every GPU: what some GPUs would be used for, in servers of one size or another. It counts if
two layouts or more were measured (tp, pp, attention-DP, expert parallelism). Throughput per GPU follows from TTFT and
TPOT, measured and predicted alike: C·O / (TTFT + (O-1)·TPOT) / GPUs. Predictions are the simulator's, as in
benchmarks/serving.py.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import accuracy_page
import serving
from scoreboard import gpus, throughput

HEAD = "| engine, GPU | groups | plans | Spearman | best picked | mean regret | p90 | a plan at random |"


class Run(NamedTuple):
    """A measured run of one layout in its group."""

    group: tuple[Any, ...]
    when: tuple[str, str]  # the engine's version and the day, where they are known
    layout: tuple[Any, ...]  # tp, pp, dp, ep
    case: serving.Case


class Plan(NamedTuple):
    """A layout of a group: tokens/s per GPU, measured, ours and another tool's (0 where it has no answer)."""

    layout: tuple[Any, ...]
    measured: float
    ours: float
    peer: float


Answers = list[tuple[Run, dict[str, float]]]
Groups = dict[tuple[Any, ...], list[Plan]]


def runs() -> list[Run]:
    """The aggregated runs of the silicon set, by what they have in common."""
    rows = {row["run"]: row for row in serving.closed_loops()}
    measured = []
    for case in serving.silicon():
        if case.build[0] == "unknown":
            continue
        row, options = rows[case.name], case.options
        tp, pp, dp = (int(options[f"{axis}_parallel_size"]) for axis in ("tensor", "pipeline", "data"))
        load = int(row["max_concurrency"]) / gpus(options)
        group = (
            row["engine"],
            case.gpu,
            case.model,
            row["quantization"],
            row["source"],
            row["input_len"],
            row["output_len"],
        )
        drafts = "speculative_config" in options
        when = (row["engine_version"], row["date"])
        measured.append(Run((*group, load, drafts), when, (tp, pp, dp, options["enable_expert_parallel"]), case))
    return measured


def answers(every: list[Run], processes: int, known: Iterable[serving.Row] = ()) -> Answers:
    """What the simulator predicts for the runs that have another layout to be compared with, whatever the day.

    Runs whose rows are ``known`` are not simulated again.
    """
    layouts: dict[tuple[Any, ...], set[tuple[Any, ...]]] = defaultdict(set)
    for run in every:
        layouts[run.group].add(run.layout)
    wanted = [run for run in every if len(layouts[run.group]) > 1]
    rows = {row.case.name: row for row in known if row.case.set == "silicon"}
    missing = [run.case for run in wanted if run.case.name not in rows]
    rows |= {row.case.name: row for row in serving.answers(missing, processes)}
    return [(run, rows[run.case.name].predicted) for run in wanted]


def groups(predicted: Answers, strict: bool = True) -> Groups:
    """Groups of two layouts or more that are all answered; a layout that was measured twice counts by its mean.

    ``strict``: of one version and one day, so that nothing but the layout differs.
    """
    seen: dict[tuple[Any, ...], dict[tuple[Any, ...], list[tuple[float, ...]]]] = defaultdict(dict)
    for run, ours in predicted:
        figures = tuple(
            throughput(run.case, answer) if {"ttft", "tpot"} <= answer.keys() else 0.0
            for answer in (run.case.measured, ours, run.case.peer)
        )
        key = (*run.group, *run.when) if strict else run.group
        seen[key].setdefault(run.layout, []).append(figures)
    complete = {}
    for group, plans in seen.items():
        means = [
            Plan(layout, *(statistics.fmean(x) for x in zip(*figures, strict=True)))
            for layout, figures in plans.items()
        ]
        if len(means) > 1 and all(plan.ours for plan in means):
            complete[group] = means
    return complete


# ------------------------------------------------------------------ how good a choice is


def ranks(values: list[float]) -> list[float]:
    """Places from the smallest, those that are equal sharing theirs: ``ranks([5, 1, 5])  # [1.5, 0, 1.5]``"""
    order = sorted(values)
    return [order.index(v) + (order.count(v) - 1) / 2 for v in values]


def spearman(plans: list[Plan]) -> float:
    """Rank correlation of measured and ours; of two plans it is 1 or -1."""
    x, y = ranks([p.measured for p in plans]), ranks([p.ours for p in plans])
    mean = (len(plans) - 1) / 2
    top = sum((p - mean) * (q - mean) for p, q in zip(x, y, strict=True))
    size = (sum((p - mean) ** 2 for p in x) * sum((q - mean) ** 2 for q in y)) ** 0.5
    return top / size if size else 0.0


def regret(plans: list[Plan], choose: Callable[[Plan], float]) -> float:
    """How much more the best plan gives than the one that is picked: 0 if they are the same."""
    picked = max(plans, key=choose)
    return max(plan.measured for plan in plans) / picked.measured - 1


def line(name: str, some: list[list[Plan]]) -> str:
    """One row of the table."""
    lost = [regret(plans, lambda plan: plan.ours) for plans in some]
    chance = [statistics.fmean(max(q.measured for q in plans) / p.measured - 1 for p in plans) for plans in some]
    right, high = sum(one < 1e-9 for one in lost) / len(lost), sorted(lost)[int(0.9 * (len(lost) - 1))]
    return (
        f"| {name} | {len(some)} | {sum(map(len, some))} | {statistics.fmean(map(spearman, some)):+.2f} | "
        f"{right:.0%} | {statistics.fmean(lost):.1%} | {high:.1%} | {statistics.fmean(chance):.1%} |"
    )


def report(predicted: Answers) -> str:
    """The table, and the comparison with the other tool."""
    strict_groups, loose = groups(predicted), groups(predicted, strict=False)
    parts: dict[str, list[list[Plan]]] = defaultdict(list)
    for group, plans in strict_groups.items():
        parts[f"{group[0]}, {group[1]}"].append(plans)
    every = list(strict_groups.values())
    lines = [HEAD, "|---|---:|---:|---:|---:|---:|---:|---:|", *(line(*part) for part in sorted(parts.items()))]
    lines += [line("all", every), line("all, versions and days mixed", list(loose.values())), ""]
    three = [spearman(plans) for plans in every if len(plans) > 2]
    lines.append(
        f"Of the {len(three)} groups of three layouts or more, Spearman is {statistics.fmean(three):+.2f} on "
        f"average and {statistics.median(three):+.2f} in the median."
    )
    shared = [plans for plans in every if all(plan.peer for plan in plans)]
    if shared:
        sentences = []
        for who, choose in (("ours", lambda plan: plan.ours), ("AIConfigurator's", lambda plan: plan.peer)):
            lost = [regret(plans, choose) for plans in shared]
            sentences.append(
                f"{who} {sum(one < 1e-9 for one in lost) / len(lost):.0%} right, "
                f"{statistics.fmean(lost):.1%} mean regret"
            )
        lines.append(f"On the {len(shared)} groups whose plans AIConfigurator answers, too: {'; '.join(sentences)}.")
    return "\n".join(lines)


def write_groups(path: str, complete: Groups) -> None:
    """Every plan of every group."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                "engine",
                "gpu",
                "model",
                "quantization",
                "client",
                "input_len",
                "output_len",
                "per_gpu",
                "drafts",
                "version",
                "day",
                "tp",
                "pp",
                "dp",
                "ep",
                "measured",
                "ours",
                "peer",
                "regret",
            ]
        )
        for group, plans in complete.items():
            lost = regret(plans, lambda plan: plan.ours)
            for plan in plans:
                writer.writerow([*group, *plan.layout, *(f"{x:.2f}" for x in plan[1:]), f"{lost:.4f}"])


def main() -> None:
    """Rank the layouts of every tenth group, or of all."""
    parser = argparse.ArgumentParser(description="Layouts ranked by us and by what was measured.")
    parser.add_argument(
        "--all", action="store_true", help="all groups, as in docs/accuracy/ranking.md, not every tenth"
    )
    parser.add_argument("--groups", help="every plan of every group as CSV")
    parser.add_argument("--only", action="append", metavar="ENGINE/GPU", help="all groups of some engines and GPUs")
    parser.add_argument("--write", action="store_true", help="put the table into docs/accuracy/ranking.md")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    measured = runs()
    if given.write and given.only:
        sys.exit("--write takes all groups: leave --only away")
    if given.only:
        measured = [run for run in measured if f"{run.group[0]}/{run.group[1]}" in given.only]
    elif not (given.all or given.write or given.groups):  # every tenth group, whole
        some = set(sorted({run.group for run in measured}, key=repr)[::10])
        measured = [run for run in measured if run.group in some]
    predicted = answers(measured, given.processes)
    text = report(predicted)
    print(text)
    if given.groups:
        write_groups(given.groups, groups(predicted))
    if given.write:
        accuracy_page.write(ranking=text)


if __name__ == "__main__":
    main()
