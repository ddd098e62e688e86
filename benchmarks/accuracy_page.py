"""docs/accuracy.md and docs/accuracy/*.md: what stands between their markers, as text and as tables.

page = read()                      # all pages as one text, in the order of PAGES
put(page, "memory", text)          # the page with a new table between <!-- memory:begin --> and <!-- memory:end -->
stands(page, "memory")             # what it has there
tables(page)[0]["columns"]         # every table between markers, cell by cell
save(page)                         # back to the files
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
DETAILS = (  # in the order of the tables of data/accuracy.json
    *("scoreboard", "engine-steps", "expected-error", "kernels", "new-gpus", "servers", "disaggregated", "hosts"),
    *("ranking", "collectives", "training", "energy"),
)
PAGES = (DOCS / "accuracy.md", *(DOCS / "accuracy" / f"{name}.md" for name in DETAILS))
BREAK = "\f\n"  # between pages


def read() -> str:
    """All pages as one text."""
    return BREAK.join(path.read_text(encoding="utf-8") for path in PAGES)


def save(page: str) -> None:
    """Write the text of all pages back to their files."""
    for path, text in zip(PAGES, page.split(BREAK), strict=True):
        path.write_text(text, encoding="utf-8")


def put(page: str, name: str, text: str) -> str:
    """The page with a table between its markers."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if begin not in page:
        sys.exit(f"no page of accuracy has a place for {name}: add {begin} and {end}")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def stands(page: str, name: str) -> str:
    """What the page has between a table's markers."""
    return page.partition(f"<!-- {name}:begin -->\n")[2].partition(f"<!-- {name}:end -->")[0].rstrip("\n")


def write(**texts: str) -> None:
    """Put tables into the pages on disk: ``write(ranking=report(…))``; an underscore in a name stands for a hyphen."""
    page = read()
    for name, text in texts.items():
        page = put(page, name.replace("_", "-"), text)
    save(page)


def tables(page: str) -> list[dict[str, Any]]:
    """Every table between markers: its name, the section it stands in, the text above it, columns and rows."""
    entries = []
    for place in re.finditer(r"<!-- ([\w-]+):begin -->\n(.*?)<!-- \1:end -->", page, re.S):
        section = _section(page[: place.start()])
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


def _section(before: str) -> str:
    """The title of a page up to its colon; on the first page, the heading above."""
    titles = re.findall(r"^# (.*)$", before, re.M)[1:] or re.findall(r"^## (.*)$", before, re.M)
    return str(titles[-1].partition(":")[0])


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
