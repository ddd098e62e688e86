"""How far a run has come, for those who are not looking at a bar: a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[int, int, str], None]  # done, of how many, and the time spent or what is next, in words
EVERY = 10.0  # s between lines


def lines(say: Callable[[str], None], what: str = "shapes") -> Progress:
    """A line at the start and then every ten seconds: ``lines(print)(7, 1000, "12 of 60 s")``"""
    last = -float("inf")

    def progress(number: int, whole: int, words: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY:
            last = now
            say(f"{number:,} of {whole:,} {what}, {words}")

    return progress
