"""Which catalogue entry a device's name means, as drivers, tables and folders write it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..catalog import find, plain

NOISE = ("nvidia", "geforce", "amd", "instinct", "tesla", "generation", "blackwell", "server", "workstation", "edition",
         "max-q", "gpu")  # fmt: skip


def recognise(text: str) -> str | None:
    """``recognise("NVIDIA GeForce RTX 4090")  # 'rtx4090'``; None if the catalogue has no such device."""
    found = find("hardware", text) if text.strip() else None
    pieces = [word for word in re.split(r"[-\s]+", plain(text)) if word and word not in NOISE]
    while pieces and not found:  # what follows a name may be a form factor, a count or a site's own word
        found = find("hardware", "-".join(pieces)) or find("hardware", "".join(pieces))
        pieces.pop()
    return found


def hinted(parts: Sequence[str]) -> str | None:
    """The device that a file's folders or name mention, the nearest first: ``hinted(Path("a100/mlp.csv").parts)``"""
    for part in reversed(parts[-8:]):
        for word in (part, *part.split("__"), *part.split(".")):
            found = find("hardware", word) or find("hardware", word.partition("_")[0])
            if found:
                return found
    return None
