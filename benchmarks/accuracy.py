"""Every figure of docs/accuracy.md and docs/accuracy, and the picture, in one command.

    python benchmarks/accuracy.py                       prints all tables
    python benchmarks/accuracy.py --write               puts them into the pages; `make accuracy` does this and the rest
    python benchmarks/accuracy.py --write --no-servers  no server is simulated: their tables and the picture stay
    python benchmarks/accuracy.py --write --rows FILE   servers' figures go into FILE, or come from it if it is there
    python benchmarks/accuracy.py --write --summary     only what is read off the page's other tables

Engine steps, memory and kernels of single GPUs, collectives, training, energy, the simulator against measured servers,
and our errors beside other tools'. Measurements are in benchmarks/data; tables of the optional sets that are not
(`measurements.elsewhere`) stay as they are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import accuracy_page
import accuracy_picture
import accuracy_summary
import collectives
import delta_rule
import energy
import engine_steps
import hosts
import kernel_accuracy
import left_out_gpu
import machines
import ranking
import scoreboard
import serving
import training
import training_runs
from serving_tables import write_rows


def sections() -> dict[str, str]:
    """Tables that need no simulation, by the name of their markers."""
    tables = engine_steps.sections() | {
        "steps-kinds": accuracy_summary.steps_by_kind(),
        "left-out": left_out_gpu.markdown(list(left_out_gpu.comparisons()), "gpu", "phase"),
    }
    tables |= {"kernels-own": kernel_accuracy.own_table(), "kernels": kernel_accuracy.tables()}
    tables |= {"delta-rule": delta_rule.report()}
    tables |= machines.sections()
    tables |= {"collectives": collectives.report(), "training": training.markdown().rstrip("\n")}
    tables["training-runs"] = training_runs.markdown().rstrip("\n")
    return tables | (energy.sections() if energy.FILE else {})


def server_sections(rows: list[serving.Row]) -> dict[str, str]:
    """Tables of the simulator against servers: each is simulated once, for all of them."""
    by_set = {name: [row for row in rows if row.case.set == name] for name in serving.SETS}
    tables = {f"serving-{name}": serving.section(name, part) for name, part in by_set.items() if part}
    tables |= {"ranking": ranking.report(ranking.answers(ranking.runs(), 2, rows))}
    return tables | scoreboard.sections(rows)


def summary(page: str) -> dict[str, str]:
    """What is read off the page's other tables."""
    return {
        "summary-servers": accuracy_summary.servers(page),
        "summary-others": accuracy_summary.others(page),
        "published": scoreboard.published(page),
    }


def main() -> None:
    """Print the tables, or put them into the page."""
    parser = argparse.ArgumentParser(description="Every figure of docs/accuracy.md.")
    parser.add_argument("--write", action="store_true", help="put the tables into the page, and draw the picture")
    parser.add_argument("--no-servers", action="store_true", help="simulate no server: their tables stay as they are")
    parser.add_argument("--rows", help="a CSV of servers' figures: read where it is there, else written")
    parser.add_argument("--summary", action="store_true", help="only the page's summary, from its other tables")
    given = parser.parse_args()
    tables = {} if given.summary else sections()
    rows: list[serving.Row] = []
    if not (given.no_servers or given.summary):
        known = bool(given.rows) and Path(given.rows).exists()
        rows = serving.saved(given.rows) if known else serving.answers(serving.chosen_cases(list(serving.SETS), 1))
        if given.rows and not known:
            write_rows(given.rows, rows)
        tables |= server_sections(rows)
        tables |= {} if known else {"scoreboard-left-out": scoreboard.left_out(), "hosts": hosts.report()}
    page = accuracy_page.read()  # as it is now: all this took minutes
    for name, text in tables.items():
        page = accuracy_page.put(page, name, text)
    for name, text in summary(page).items():
        tables[name], page = text, accuracy_page.put(page, name, text)
    for name, text in tables.items():
        print(f"## {name}\n{text}\n")
    if given.write:
        accuracy_page.save(page)
        if rows:
            accuracy_picture.draw(rows)
        print("docs/accuracy.md and docs/accuracy are written; `make data` takes them over into the package")


if __name__ == "__main__":
    main()
