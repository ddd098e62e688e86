"""inferometer: predicts, explains, measures and plans LLM inference.

import inferometer
report = inferometer.analyze("llama-3.1-8b", gpu="h200", batch_size=8, input_len=1024, output_len=128)
print(report.metrics.ttft_ms, report.metrics.tpot_ms, report.summary)
"""

from typing import TYPE_CHECKING, Any

from .analyze import analyze
from .errors import BadFile, BadValue, InferometerError, UnknownName
from .report import Report

if TYPE_CHECKING:
    from .levers.report import Sensitivity
    from .levers.verb import sensitivity
    from .measure.verb import profile
    from .planning.found import Search
    from .planning.verb import search
    from .serving.capacity import Capacity, find_capacity
    from .serving.metrics import metrics
    from .serving.outcome import Outcome
    from .serving.requests import Trace
    from .serving.simulate import simulate
    from .serving.synthetic import synthetic
    from .serving.trace import read_trace
    from .sweeps.table import Sweep
    from .sweeps.verb import sweep
    from .training.report import TrainReport
    from .training.verb import train
    from .validation import validate

__version__ = "0.1.0"
__all__ = [
    "BadFile", "BadValue", "Capacity", "InferometerError", "Outcome", "Report", "Search", "Sensitivity", "Sweep",
    "Trace", "TrainReport", "UnknownName", "__version__", "analyze", "find_capacity", "metrics", "profile",
    "read_trace", "search", "sensitivity", "simulate", "sweep", "synthetic", "train", "validate",
]  # fmt: skip

_LATER = {  # loaded when they are asked for
    "Capacity": ".serving.capacity", "find_capacity": ".serving.capacity", "profile": ".measure.verb",
    "Search": ".planning.found", "search": ".planning.verb",
    "Sensitivity": ".levers.report", "sensitivity": ".levers.verb", "Sweep": ".sweeps.table", "sweep": ".sweeps.verb",
    "Outcome": ".serving.outcome", "Trace": ".serving.requests", "TrainReport": ".training.report",
    "metrics": ".serving.metrics", "read_trace": ".serving.trace", "simulate": ".serving.simulate",
    "synthetic": ".serving.synthetic", "train": ".training.verb", "validate": ".validation",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
