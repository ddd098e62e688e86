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
    from .serving.metrics import metrics
    from .serving.outcome import Outcome
    from .serving.requests import Trace
    from .serving.simulate import simulate
    from .serving.synthetic import synthetic
    from .serving.trace import read_trace
    from .training.report import TrainReport
    from .training.verb import train
    from .validation import validate

__version__ = "0.1.0"
__all__ = [
    "BadFile", "BadValue", "InferometerError", "Outcome", "Report", "Trace", "TrainReport", "UnknownName",
    "__version__", "analyze", "metrics", "read_trace", "simulate", "synthetic", "train", "validate",
]  # fmt: skip

_LATER = {  # loaded when they are asked for
    "Outcome": ".serving.outcome", "Trace": ".serving.requests", "TrainReport": ".training.report",
    "metrics": ".serving.metrics", "read_trace": ".serving.trace", "simulate": ".serving.simulate",
    "synthetic": ".serving.synthetic", "train": ".training.verb", "validate": ".validation",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
