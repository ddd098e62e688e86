"""Small pieces of Markdown that all pages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = ()) -> str:
    """A table with a blank line after it: ``table(["name", "bytes"], [["bf16", 2]], numbers=["bytes"])``"""
    marks = ["---:" if title in numbers else "---" for title in head]
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(marks) + "|"]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(value: object) -> str:
    """A value inside a table: one line, no bars."""
    pieces = " ".join(str(value).split()).replace("``", "`").split("`")  # every other one is code
    pieces[::2] = [piece.replace("<", "&lt;") for piece in pieces[::2]]
    return "`".join(pieces).replace("|", "\\|")


def code(value: object) -> str:
    """A name as code; empty stays empty."""
    return f"`{value}`" if str(value) else ""


def anchor(title: str) -> str:
    """The address of a heading, as code hosts and the site make it: ``anchor("KV cache")  # 'kv-cache'``"""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
