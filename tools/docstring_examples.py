"""A griffe extension for the docs site: lines of a docstring that are code and nothing else become a block of code."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import griffe

EXAMPLE = re.compile(r"``((?:(?!``).)+)``")


class DocstringExamples(griffe.Extension):
    """``analyze("llama-3.1-8b").metrics.tpot_ms`` on a line of its own is shown as an example to copy."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of every object that is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = with_blocks(obj.docstring.value)


def with_blocks(text: str) -> str:
    """``with_blocks("Say it.\\n\\n``f(1)``\\n``f(2)``")`` has both calls in one block."""
    parts: list[str] = []
    for is_code, lines in groupby(text.splitlines(), key=lambda line: bool(EXAMPLE.fullmatch(line.strip()))):
        if is_code:
            code = "\n".join(line.strip()[2:-2] for line in lines)
            parts.append(f"\n```python\n{code}\n```\n")
        else:
            parts += lines
    return "\n".join(parts)
