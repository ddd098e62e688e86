"""docs/accuracy.md: what stands between its markers, as text and as tables.

put(page, "memory", text)          # the page with a new table between <!-- memory:begin --> and <!-- memory:end -->
stands(page, "memory")             # what it has there
tables(page)[0]["columns"]         # every table between markers, cell by cell
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"


def put(page: str, name: str, text: str) -> str:
    """The page with a table between its markers."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if begin not in page:
        sys.exit(f"docs/accuracy.md has no place for {name}: add {begin} and {end}")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def stands(page: str, name: str) -> str:
    """What the page has between a table's markers."""
    return page.partition(f"<!-- {name}:begin -->\n")[2].partition(f"<!-- {name}:end -->")[0].rstrip("\n")


def write(**texts: str) -> None:
    """Put tables into the page on disk: ``write(ranking=report(…))``; an underscore in a name stands for a hyphen."""
    page = PAGE.read_text(encoding="utf-8")
    for name, text in texts.items():
        page = put(page, name.replace("_", "-"), text)
    PAGE.write_text(page, encoding="utf-8")


def tables(page: str) -> list[dict[str, Any]]:
    """Every table between markers: its name, the section it stands in, the text above it, columns and rows."""
    entries = []
    for place in re.finditer(r"<!-- ([\w-]+):begin -->\n(.*?)<!-- \1:end -->", page, re.S):
        section = re.findall(r"^## (.*)$", page[: place.start()], re.M)[-1]
        for number, table in enumerate(re.finditer(r"((?:^(?!\|).*\n)*)((?:^\|.*\n)+)", place[2], re.M)):
            lines = [_cells(line) for line in table[2].splitlines()]
            about = " ".join(table[1].replace("**", "").split())
            entries.append(
                {
                    "name": place[1] if not number else f"{place[1]}-{number + 1}",
                    "section": section,
                    "about": about,
                    "columns": lines[0],
                    "rows": lines[2:],
                }
            )
    return entries


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
