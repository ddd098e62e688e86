"""Steps of the real engine on one H200 against predictions: decode at full batch, and time to first token.

    python benchmarks/engine_steps.py           prints the tables of docs/accuracy.md
    python benchmarks/engine_steps.py --write   puts them there

The rows in benchmarks/data were not fitted, though they were looked at (docs/accuracy.md says how far); those in the
shared folder (INFEROMETER_SHARED, default ../shared) helped to choose the engine's constants.
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from inferometer import catalog, models, numerics, timing
from inferometer.evaluate import Setup, prepare, step_seconds
from inferometer.spec import Plan
from inferometer.steps import Group, Step

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
UNSEEN = ROOT / "benchmarks" / "data" / "h200_static.csv"
NAMES = {"mixtral-8x7b": "mixtral-8x7b-v0.1"}


def seen() -> Path:
    """The rows of the shared folder."""
    shared = Path(os.environ.get("INFEROMETER_SHARED", ROOT.parent / "shared"))
    return shared / "measured" / "h200_vllm" / "static.csv"


def setup(model: str, precision: str) -> Setup:
    """The engine as it was measured: vLLM on one H200, 512 sequences, 8,192 tokens a step."""
    network = models.build(catalog.model(NAMES.get(model, model)).config)
    plan = Plan(max_num_seqs=512, gpu_memory_utilization=0.92, quantization=precision)
    roles = numerics.by_role(network, "bf16", precision)
    return prepare(network, catalog.hardware("h200"), catalog.engine("vllm"), plan, roles=roles)


def errors(path: Path) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Relative errors by model and precision: of decode steps, and of TTFT below and above 512 tokens."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    setups: dict[tuple[str, str], Setup] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["model"], row["precision"])
            s = setups[key] = setups.get(key) or setup(*key)
            batch, length = int(row["batch"]), int(row["input_len"])
            if row["decode_step_ms"]:
                step = Step((Group(batch, 1, float(row["decode_context"]) - 1, 1, True),))
                found[key]["decode"].append(float(step_seconds(s, step)) * 1e3 / float(row["decode_step_ms"]) - 1)
            if row["last_ttft_ms"] and row["prefill_steps"] == "1":
                took = float(timing.prefill_seconds(s, timing.prefill_steps(s, batch, length)))
                ours = (took + s.engine.request_overhead) * 1e3
                kind = "long" if batch * length > 512 else "short"
                found[key][kind].append(ours / float(row["last_ttft_ms"]) - 1)
    return found


def table(path: Path) -> str:
    """Mean absolute error and bias in percent, a line a model."""
    lines = ["| model | decode step | TTFT, over 512 tokens | TTFT, up to 512 |", "|---|---|---|---|"]
    for (model, precision), parts in sorted(errors(path).items()):
        cells = [_cell(parts.get(word, [])) for word in ("decode", "long", "short")]
        lines.append(f"| {model} {precision} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(found: list[float]) -> str:
    if not found:
        return "–"
    mean = statistics.mean(abs(e) for e in found)
    return f"{mean:.1%}, bias {statistics.mean(found):+.1%} ({len(found)})"


def section(name: str, path: Path) -> str:
    """What stands between the page's markers."""
    return f"<!-- steps-{name}:begin -->\n{table(path)}\n<!-- steps-{name}:end -->"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, path in (("unseen", UNSEEN), ("seen", seen())):
        if not path.exists():
            print(f"{path} is not at hand: skipped")
            continue
        text = section(name, path)
        print(text)
        before, _, rest = page.partition(f"<!-- steps-{name}:begin -->")
        page = before + text + rest.partition(f"<!-- steps-{name}:end -->")[2]
    if "--write" in sys.argv:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
