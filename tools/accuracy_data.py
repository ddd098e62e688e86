"""Makes src/inferometer/data/accuracy.json, the Accuracy tab of `inferometer web`, from docs/accuracy.md
and docs/accuracy as they stand.

    python tools/accuracy_data.py        tables of the pages, and points that were measured beside predicted ones

Run it after `python benchmarks/accuracy.py --write`, which measures and puts the tables there. Steps of engines
are predicted here point by point; those without their measurements at hand stay as they are in the file.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks"))  # the steps are compared there

import engine_steps  # noqa: E402
from accuracy_page import read, tables  # noqa: E402

DATA = ROOT / "src" / "inferometer" / "data" / "accuracy.json"
KINDS = {
    "decode": "decode step",
    "long": "TTFT, over 512 tokens",
    "short": "TTFT, up to 512",
    "many": "TTFT, several steps",
}


def pairs(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Points of a table that has columns for what was measured and, beside them, for what was predicted."""
    points = []
    for at, word in enumerate(table["columns"][:-1]):
        what, seen, rest = word.partition("measured") if "measured" in word else ("", word == "published", "")
        if not seen or table["columns"][at + 1] != "predicted":
            continue
        rows = [row for row in table["rows"] if _number(row[at]) is not None and _number(row[at + 1]) is not None]
        unit = rest.strip(", ") or ("tokens" if "tokens" in what else "ms" if what else "")
        points.append(
            {
                "set": table["name"],
                "what": what.strip() or table["about"].rpartition(".")[2].strip(": "),
                "unit": unit,
                "labels": [row[0] for row in rows],
                "measured": [_number(row[at]) for row in rows],
                "predicted": [_number(row[at + 1]) for row in rows],
            }
        )
    return [one for one in points if one["labels"]]


def _number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None


def steps() -> list[dict[str, Any]]:
    """Steps of the engine one by one, of the files that are at hand, in ms."""
    points = []
    for name, path in engine_steps.SETS.items():
        by_kind: dict[str, dict[str, list[Any]]] = {}
        for key, parts in sorted(engine_steps.rows(path).items()) if path.exists() else ():
            off = engine_steps.errors(engine_steps.bound_plan(*key), parts)
            for kind, part in parts.items():
                columns = by_kind.setdefault(kind, {"labels": [], "measured": [], "predicted": []})
                columns["labels"] += [
                    f"{' '.join(key)}, {batch:.0f} × {length:.0f}"
                    for batch, length in zip(part.batch, part.length, strict=True)
                ]
                columns["measured"] += [round(x * 1e3, 4) for x in part.seconds]
                columns["predicted"] += [round(x * 1e3, 4) for x in part.seconds * (1 + off[kind])]
        points += [{"set": name, "what": KINDS[kind], "unit": "ms", **columns} for kind, columns in by_kind.items()]
    return points


def prediction_errors(made: list[dict[str, Any]], page: str) -> dict[str, Any]:
    """Median errors of TTFT and TPOT by engine and GPU; `search` holds the margin of its winner against TPOT's."""
    table = next(one for one in made if one["name"] == "serving-silicon")
    runs, ttft, tpot = (table["columns"].index(name) for name in ("runs", "TTFT median", "TPOT median"))
    engines: dict[str, dict[str, Any]] = {}
    for row in table["rows"]:
        engine, gpu = row[0].split(", ")
        shares = {name: round(float(row[at].rstrip("%")) / 100, 4) for name, at in (("ttft", ttft), ("tpot", tpot))}
        engines.setdefault(engine, {})[gpu] = {**shares, "runs": int(row[runs].replace(",", ""))}
    pattern = (
        r"serving-silicon:begin.*?^(\d+) of \d+ runs answered.*?TTFT.*?, median ([\d.]+)%.*?TPOT.*?, median ([\d.]+)%"
    )
    whole = re.search(pattern, page, re.S | re.M)
    assert whole is not None
    medians = {
        name: round(float(share) / 100, 4) for name, share in zip(("ttft", "tpot"), whole.groups()[1:], strict=True)
    }
    return {
        "table": table["name"],
        "engines": engines,
        "all": {**medians, "runs": int(whole[1])},
        "default": medians["tpot"],
    }


def accuracy_data(page: str) -> dict[str, Any]:
    """The whole file; points of measurements that are not at hand stay as they were."""
    made = tables(page)
    points = [*steps(), *(one for table in made for one in pairs(table))]
    have = {(one["set"], one["what"]) for one in points}
    before = json.loads(DATA.read_text(encoding="utf-8"))["points"] if DATA.exists() else []
    points += [one for one in before if one["set"].startswith("steps-") and (one["set"], one["what"]) not in have]
    return {
        "schema": "inferometer.accuracy/1",
        "page": "docs/accuracy.md",
        "prediction_errors": prediction_errors(made, page),
        "tables": made,
        "points": points,
    }


def write() -> None:
    """Put it beside the other data of the package."""
    text = json.dumps(accuracy_data(read()), ensure_ascii=False, separators=(",", ":"))
    DATA.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
    print(f"wrote {DATA.relative_to(ROOT)}")
