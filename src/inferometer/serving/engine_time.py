"""What the engine adds to the kernels of a step with prompts in it, as `costs.host` has it, for single steps in a row.

time = EngineTime(bound_plan, env)
time.step_seconds(0.03, prompts=(800, 1), decodes=(12, 12), logits=13, thermal_state=0.0, ahead=0.0)
Throttle(time_constant=0.1).fraction_at(12.0)       # how far the chip's clocks have come down

A simulated run asks for a million such steps. What depends on counts alone (launches, and whether they are in graphs)
is remembered; the formulas of `costs.host` are worked out with plain numbers for the rest, in the same order.
"""

from __future__ import annotations

from math import exp, expm1, inf, log1p
from typing import Any

import numpy as np

from ..costs import binding, host
from ..costs.binding import BoundPlan

NOTHING = 1e-12  # of a step's time


class EngineTime:
    """``EngineTime(bound_plan, env).busy_seconds(800, 12, 13)``, with ``env`` of a step without sequences."""

    def __init__(self, bound_plan: BoundPlan, env: dict[str, Any]) -> None:
        self.bound_plan, engine = bound_plan, bound_plan.engine
        self.launches = host.launch_seconds(bound_plan.model, engine)
        self.overhead, self.is_async = engine.step_overhead, engine.async_scheduling
        # A copy of all names for each step would cost as much as the step itself: it is written over by every call.
        self._env = dict(env)
        self._factor: float | None = None  # by which the engine's calibration multiplies every such step
        if engine.prefill_factor == engine.decode_factor and engine.mixed_factor == engine.eager_factor == 1:
            self._factor = engine.prefill_factor
        self._launching: dict[tuple[int, bool, bool], tuple[float, float]] = {}
        self._per_sequence = engine.step_floor_per_sequence
        self._throttle, self._throttle_after = float(env["throttle"]), float(env["throttle_after"])
        self._hot_seconds, self._cooling = float(env.get("hot_seconds", 0.0)), float(env.get("cooling", 0.0))

    def _host_work(self, tokens: int, num_new: int, num_decoding: int, num_seqs: int) -> tuple[float, float]:
        """Seconds to launch the kernels of a step, and to plan it."""
        key = (tokens, num_new > 0, num_decoding > 0)
        known = self._launching.get(key)
        if known is None:
            sums = {"prefill_tokens": num_new, "decode_tokens": num_decoding, "tokens": tokens, "seqs": 0}
            plan = self.bound_plan
            launching, planning = host.launching_and_planning(plan.model, plan.engine, sums, self.launches)
            known = self._launching[key] = float(launching), float(planning)
        return known[0], known[1] + self._per_sequence * num_seqs

    def busy_seconds(self, num_new: int, num_decoding: int, num_seqs: int) -> float:
        """Seconds that planning and launching a step keep the host busy."""
        tokens = num_new + num_decoding
        launching, planning = self._host_work(tokens, num_new, num_decoding, num_seqs)
        if self._factor is not None:
            return (launching + planning) * self._factor
        env = {"prefill_tokens": num_new, "decode_tokens": num_decoding, "tokens": tokens, "seqs": num_seqs}
        return float((launching + planning) * binding.calibration_factor(self.bound_plan, env))

    def step_seconds(
        self,
        kernels: float,
        prompts: tuple[int, int],
        decodes: tuple[int, int],
        logits: int,
        thermal_state: float,
        ahead: float,
    ) -> float:
        """Seconds of a step whose kernels take so many: prompts and decodes are tokens and sequences of each."""
        (num_new, num_chunks), (num_decoding, num_seqs) = prompts, decodes
        tokens = num_new + num_decoding
        launching, planning = self._host_work(tokens, num_new, num_decoding, num_seqs + num_chunks)
        if self.is_async:
            launching, planning = launching + planning - ahead, 0.0
        late = launching - kernels if launching > kernels else 0.0
        slower = self._throttle_seconds(kernels, planning + late, num_new, num_decoding, thermal_state)
        seconds = kernels + (self.overhead + planning + (slower if slower > late else late))
        if self._factor is not None:
            return seconds * self._factor
        env = self._env
        env["tokens"], env["logits"], env["thermal_state"] = tokens, logits, thermal_state
        env["prefill_tokens"], env["prefill_seqs"], env["seqs"] = num_new, num_chunks, num_seqs + num_chunks
        env["decode_tokens"], env["decode_seqs"] = num_decoding, num_seqs
        return float(seconds * binding.calibration_factor(self.bound_plan, env))

    def _throttle_seconds(
        self, kernels: float, beyond: float, num_new: int, num_decoding: int, thermal_state: float
    ) -> float:
        """`host.throttle_seconds` of one step."""
        if not self._throttle:
            return 0.0
        busy = kernels * num_new / (num_new + num_decoding if num_new + num_decoding > 1 else 1)
        time = busy / self._throttle_after
        if time < 1e-9:
            time = 1e-9
        state = 1 - (1 - thermal_state) * (1 - exp(-time)) / time
        rest = kernels - busy
        whole = rest + beyond
        hot = num_decoding * self._hot_seconds / (whole if whole > 1e-9 else 1e-9)
        decodes = self._throttle * (hot * hot * hot if hot < 1.0 else 1.0)
        cooling = self._cooling * state
        return self._throttle * busy * state + rest * (decodes if decodes > cooling else cooling)


class Throttle:
    """How far a chip's clocks have come down: prompts heat it until the power limit bites, all else lets it cool.

    throttle = Throttle(time_constant=0.1)
    throttle.fraction_at(12.0)              # 0.0: cold, clocks are high
    throttle.add_load(12.0, 0.05, 1.0)      # 50 ms of prompts
    throttle.fraction_at(12.05)             # 0.39
    Throttle(0.1, cooling=0.06).decoding(12.05, 0.02)   # what 20 ms of decode steps take then
    """

    __slots__ = ("cooling", "fraction", "time_constant", "updated_s")

    def __init__(self, time_constant: float, cooling: float = 0.0) -> None:
        self.time_constant = time_constant  # s, the same both ways
        self.cooling = cooling  # share of time more that decode steps take at fraction 1
        self.fraction = self.updated_s = 0.0

    def fraction_at(self, now: float) -> float:
        """The share of its loss of speed that the chip has reached: from 0 (cold) to 1."""
        return self.fraction * exp((self.updated_s - now) / self.time_constant) if self.fraction else 0.0

    def add_load(self, start: float, seconds: float, prefill_share: float, fraction: float | None = None) -> None:
        """A step is over, of which a share was prompts; ``fraction``: that at its start, where it is known."""
        busy = seconds * prefill_share
        heated = 1 - (1 - (self.fraction_at(start) if fraction is None else fraction)) * exp(-busy / self.time_constant)
        self.fraction, self.updated_s = heated * exp((busy - seconds) / self.time_constant), start + seconds

    def decoding(self, now: float, seconds: float) -> float:
        """What decode steps take from ``now`` on that take so many seconds on a cold chip; it cools meanwhile.

        Steps one by one take as long as all at once: the exact sum of (1 + cooling · fraction) over the time.
        """
        excess = self.cooling * self.fraction_at(now)
        if excess < NOTHING:
            return seconds
        return seconds + self.time_constant * log1p(-excess * expm1(-seconds / self.time_constant))

    def cold_seconds(self, now: float, seconds: float) -> float:
        """What decode steps that take so many seconds from ``now`` on would take on a cold chip: `decoding` undone."""
        excess = self.cooling * self.fraction_at(now)
        if excess < NOTHING or seconds == inf:
            return seconds
        return seconds - self.time_constant * (log1p(excess) - log1p(excess * exp(-seconds / self.time_constant)))

    def decoding_each(self, now: float, durations: np.ndarray) -> np.ndarray:
        """The same for steps in a row, each by itself."""
        excess = self.cooling * self.fraction_at(now)
        ends = np.cumsum(durations)
        ends = ends + self.time_constant * np.log1p(-excess * np.expm1(-ends / self.time_constant))
        return np.diff(ends, prepend=0.0)
