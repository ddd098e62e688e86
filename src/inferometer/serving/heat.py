"""How hot a chip is: prompts keep its matrix units busy until the power limit bites, and everything else lets it cool.

heat = Heat(0.1)
heat.at(12.0)                        # 0.0: cold, clocks are high
heat.worked(12.0, 0.05, 1.0)         # 50 ms of prompts
heat.at(12.05)                       # 0.39
"""

from __future__ import annotations

from math import exp


class Heat:
    """The share of its loss of speed that a chip has reached, moving with one time constant both ways."""

    __slots__ = ("after", "level", "when")

    def __init__(self, after: float) -> None:
        self.after = after  # s
        self.level = self.when = 0.0

    def at(self, now: float) -> float:
        """From 0 (cold) to 1."""
        return self.level * exp((self.when - now) / self.after) if self.level else 0.0

    def worked(self, start: float, took: float, share: float) -> None:
        """A step is over, of which a ``share`` was prompts."""
        busy = took * share
        level = 1 - (1 - self.at(start)) * exp(-busy / self.after)
        self.level, self.when = level * exp((busy - took) / self.after), start + took
