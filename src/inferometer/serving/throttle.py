"""A chip's clocks under a simulated load: they fall while prompts keep it busy, and recover."""

from __future__ import annotations

from math import exp


class Throttle:
    """How far a chip's clocks have come down: prompts heat it until the power limit bites, all else lets it cool.

    throttle = Throttle(time_constant=0.1)
    throttle.fraction_at(12.0)              # 0.0: cold, clocks are high
    throttle.add_load(12.0, 0.05, 1.0)      # 50 ms of prompts
    throttle.fraction_at(12.05)             # 0.39
    """

    __slots__ = ("fraction", "time_constant", "updated_s")

    def __init__(self, time_constant: float) -> None:
        self.time_constant = time_constant  # s, the same both ways
        self.fraction = self.updated_s = 0.0

    def fraction_at(self, now: float) -> float:
        """The share of its loss of speed that the chip has reached: from 0 (cold) to 1."""
        return self.fraction * exp((self.updated_s - now) / self.time_constant) if self.fraction else 0.0

    def add_load(self, start: float, seconds: float, prefill_share: float, fraction: float | None = None) -> None:
        """A step is over, of which a share was prompts; ``fraction``: that at its start, where it is known."""
        busy = seconds * prefill_share
        heated = 1 - (1 - (self.fraction_at(start) if fraction is None else fraction)) * exp(-busy / self.time_constant)
        self.fraction, self.updated_s = heated * exp((busy - seconds) / self.time_constant), start + seconds
