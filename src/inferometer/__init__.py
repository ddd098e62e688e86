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
    from .training.report import TrainReport
    from .training.verb import train

__version__ = "0.1.0"
__all__ = [
    "BadFile", "BadValue", "InferometerError", "Report", "TrainReport", "UnknownName", "__version__", "analyze",
    "train",
]  # fmt: skip

_LATER = {"train": ".training.verb", "TrainReport": ".training.report"}  # loaded when they are asked for


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
