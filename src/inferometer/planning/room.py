"""How many sequences a server's memory holds: of every stage, for every limit that its engine may be started with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..evaluate import Setup
from ..footprint import drafter
from ..steps import Group, Step
from .asked import Traffic
from .stages import Sizes, distinct
from .steady import Load


class Room(NamedTuple):
    """Sequences that fit beside the weights, and what the fullest GPU would have to hold for one."""

    sequences: np.ndarray  # by token budget and --max-num-seqs
    answering: float  # on a rank that only answers, with the engine's own limits
    needed: float  # bytes
    usable: float

    @property
    def reason(self) -> str:
        """Why not even one request fits; empty if one does."""
        if (self.sequences >= 1).any():
            return ""
        return f"needs {self.needed / 1e9:.1f} GB of the {self.usable / 1e9:.1f} GB per GPU that it may use"


def rooms(setups: list[Setup], load: Load, traffic: Traffic, sequences: tuple[int, ...]) -> list[Room]:
    """Of one layout at several depths of pipeline: bytes of a block are counted once for all."""
    engine, plan = setups[0].engine, setups[0].plan
    shared = float(traffic.prefix_len if engine.prefix_caching else 0)
    lengths = np.array([traffic.input_len + traffic.output_len / 2, float(traffic.longest), shared])
    budget, seqs = np.array(load.budgets)[:, None], np.array(sequences, float)[None, :]
    if engine.profile_run:  # it sets aside what its largest step needs
        rows = np.minimum(budget, seqs)
        largest = Step((Group(rows, budget / rows, 0, 1),))
    else:
        piece = np.minimum(budget, load.prompt) + 0 * seqs
        largest = Step((Group(budget / piece, piece, load.prompt - piece, 1),))
    sizes = Sizes(setups[0], lengths, largest)
    more_weights, more_cache = drafter(setups[0], lengths[0])
    usable = setups[0].device.memory * plan.gpu_memory_utilization
    found = []
    for setup in setups:
        fit, need = np.full((budget.size, seqs.size), np.inf), 0.0
        for stage in distinct(setup):
            weights, (mean, longest, prefix), live = sizes.stage(stage.setup)
            fixed = weights + more_weights + engine.memory_reserve + np.broadcast_to(live, fit.shape)
            left = usable - fixed - longest - more_cache  # one that comes in must have room for all of itself
            each = max(mean - prefix + more_cache, 1.0)
            fit = np.minimum(fit, np.where(left >= 0, 1 + (left - prefix) // each, 0))
            need = max(need, float((fixed + longest).min()))
        usual = fit[np.abs(load.budgets - plan.max_num_batched_tokens).argmin(),
                    np.abs(seqs[0] - plan.max_num_seqs).argmin()]  # fmt: skip
        found.append(Room(fit, float(usual), need, usable))
    return found
