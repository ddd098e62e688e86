"""The page of accuracy as data, for the Accuracy tab of `inferometer web`: its tables, and measured beside predicted.

    python benchmarks/shipped.py        writes src/inferometer/data/accuracy.json from docs/accuracy.md as it stands

`benchmarks/accuracy.py --write` does so, too, after it has made the tables anew.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import engine_steps

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
DATA = ROOT / "src" / "inferometer" / "data" / "accuracy.json"
KINDS = {
    "decode": "decode step",
    "long": "TTFT, over 512 tokens",
    "short": "TTFT, up to 512",
    "many": "TTFT, several steps",
}


def tables(page: str) -> list[dict[str, Any]]:
    """Every table between markers: its name, the section it stands in, the words above it, columns and rows."""
    found = []
    for place in re.finditer(r"<!-- ([\w-]+):begin -->\n(.*?)<!-- \1:end -->", page, re.S):
        section = re.findall(r"^## (.*)$", page[: place.start()], re.M)[-1]
        for number, table in enumerate(re.finditer(r"((?:^(?!\|).*\n)*)((?:^\|.*\n)+)", place[2], re.M)):
            lines = [_cells(line) for line in table[2].splitlines()]
            about = " ".join(table[1].replace("**", "").split())
            found.append(
                {
                    "name": place[1] if not number else f"{place[1]}-{number + 1}",
                    "section": section,
                    "about": about,
                    "columns": lines[0],
                    "rows": lines[2:],
                }
            )
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def pairs(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Points of a table that has columns for what was measured and, beside them, for what was predicted."""
    found = []
    for at, word in enumerate(table["columns"][:-1]):
        what, seen, rest = word.partition("measured") if "measured" in word else ("", word == "published", "")
        if not seen or table["columns"][at + 1] != "predicted":
            continue
        rows = [row for row in table["rows"] if _number(row[at]) is not None and _number(row[at + 1]) is not None]
        unit = rest.strip(", ") or ("tokens" if "tokens" in what else "ms" if what else "")
        found.append(
            {
                "set": table["name"],
                "what": what.strip() or table["about"].rpartition(".")[2].strip(": "),
                "unit": unit,
                "labels": [row[0] for row in rows],
                "measured": [_number(row[at]) for row in rows],
                "predicted": [_number(row[at + 1]) for row in rows],
            }
        )
    return [one for one in found if one["labels"]]


def _number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None


def steps() -> list[dict[str, Any]]:
    """Steps of the engine one by one, of the files that are at hand, in ms."""
    sets = {
        "steps-own": engine_steps.OWN,
        "steps-more": engine_steps.MORE,
        "steps-shared": engine_steps.SHARED / "static.csv",
    }
    found = []
    for name, path in sets.items():
        by_kind: dict[str, dict[str, list[Any]]] = {}
        for key, parts in sorted(engine_steps.rows(path).items()) if path.exists() else ():
            off = engine_steps.errors(engine_steps.bound_plan(*key), parts)
            for kind, part in parts.items():
                mine = by_kind.setdefault(kind, {"labels": [], "measured": [], "predicted": []})
                mine["labels"] += [
                    f"{' '.join(key)}, {batch:.0f} × {length:.0f}"
                    for batch, length in zip(part.batch, part.length, strict=True)
                ]
                mine["measured"] += [round(x * 1e3, 4) for x in part.seconds]
                mine["predicted"] += [round(x * 1e3, 4) for x in part.seconds * (1 + off[kind])]
        found += [{"set": name, "what": KINDS[kind], "unit": "ms", **mine} for kind, mine in by_kind.items()]
    return found


def shipped(page: str) -> dict[str, Any]:
    """All of it. What is not at hand is left as it was."""
    made = tables(page)
    points = [*steps(), *(one for table in made for one in pairs(table))]
    have = {(one["set"], one["what"]) for one in points}
    before = json.loads(DATA.read_text(encoding="utf-8"))["points"] if DATA.exists() else []
    points += [one for one in before if one["set"].startswith("steps-") and (one["set"], one["what"]) not in have]
    return {"schema": "inferometer.accuracy/1", "page": "docs/accuracy.md", "tables": made, "points": points}


def write() -> None:
    """Put it beside the other data of the package."""
    text = json.dumps(shipped(PAGE.read_text(encoding="utf-8")), ensure_ascii=False, separators=(",", ":"))
    DATA.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
