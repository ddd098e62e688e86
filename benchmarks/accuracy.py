"""Every figure of docs/accuracy.md in one command.

    python benchmarks/accuracy.py            prints all tables
    python benchmarks/accuracy.py --write    puts them into the page; `make data` then takes it over into the package

Engine steps, memory and kernels of single GPUs, collectives, training, energy, and the simulator against measured
servers. What needs measurements that are not at hand (INFEROMETER_SHARED, default ../shared) is left as it stands.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import collectives
import energy
import engine_steps
import kernel_accuracy
import left_out_gpu
import training

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "accuracy.md"
FULL = {"serving.py": ["--every", "1"], "ranking.py": ["--all"]}  # what makes them compare every run


def sections() -> dict[str, str]:
    """Tables by the name of their markers; the simulator's are written by its own script."""
    tables = engine_steps.sections() | {
        "left-out": left_out_gpu.markdown(list(left_out_gpu.comparisons()), "gpu", "phase")
    }
    if energy.FILE.exists():
        tables |= {"energy": energy.markdown()}
    folder = collectives.tables()
    if folder is not None:
        tables |= {"kernels-own": kernel_accuracy.own_table(), "kernels": kernel_accuracy.tables()}
        tables |= {"collectives": collectives.report(folder), "training": training.markdown().rstrip("\n")}
    return tables


def put(page: str, name: str, text: str) -> str:
    """The page with a table between its markers."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if begin not in page:
        sys.exit(f"docs/accuracy.md has no place for {name}: add {begin} and {end}")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def stands(page: str, name: str) -> str:
    """What the page has between a table's markers."""
    return page.partition(f"<!-- {name}:begin -->\n")[2].partition(f"\n<!-- {name}:end -->")[0]


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, text in sections().items():
        print(f"## {name}\n{text}\n")
        page = put(page, name, text)
    write = "--write" in sys.argv
    if write:
        PAGE.write_text(page, encoding="utf-8")
    if engine_steps.SHARED.is_dir():
        for script in FULL:
            subprocess.run([sys.executable, HERE / script, *(["--write"] if write else FULL[script])], check=True)
    if write:
        print("docs/accuracy.md is written; `make data` takes it over into the package")


if __name__ == "__main__":
    main()
