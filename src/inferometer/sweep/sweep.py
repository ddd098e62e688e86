"""``sweep("llama-3.1-8b", gpu=["h200", "h100-sxm"], batch_size="1:256:x2")``: every combination, as one table."""

from __future__ import annotations

from typing import Any

from ..base.errors import BadValue
from .grid import Grid
from .points import pieces
from .sweep_table import Sweep

HELD = 10**7  # points that are kept in memory, or shown
MOST = 10**9  # points of any grid


def sweep(model: Any, gpu: Any = "h100-sxm", **axes: Any) -> Sweep:
    """Price every combination of the axes; the keywords are the words of `analyze`, each one value, a list or a range.

    ``sweep("llama-3.1-8b", gpu="h200", tensor_parallel_size="1:8:x2", batch_size=[1, 8, 64], quantization="bf16,fp8")``
    """
    grid = checked(model, gpu, to_file=False, **axes)
    return Sweep(grid, pieces(grid))


def checked(model: Any, gpu: Any, *, to_file: bool, **axes: Any) -> Grid:
    """The grid of some axes with nothing wrong in it, and no larger than what becomes of it allows."""
    grid = Grid(model, gpu, **axes)
    if grid.points > MOST:
        raise BadValue(f"the grid has {grid.points:,} points, more than {MOST:,}: give fewer values or larger steps")
    if grid.points > HELD and not to_file:
        raise BadValue(
            f"the grid has {grid.points:,} points, too many to be held: up to {HELD:,} are, and more go to "
            "a file alone, with sweep … -o FILE.parquet and without --plot"
        )
    grid.check()
    return grid
