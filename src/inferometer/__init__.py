"""inferometer: predicts, explains, measures and plans LLM inference.

    import inferometer
    report = inferometer.analyze("llama-3.1-8b", gpu="h200", batch_size=8, input_len=1024, output_len=128)
    print(report.metrics.ttft_ms, report.metrics.tpot_ms, report.summary)
"""

from .analyze import analyze
from .errors import BadFile, BadValue, InferometerError, UnknownName
from .report import Report
from .train import train
from .training_report import TrainReport

__version__ = "0.1.0"
__all__ = [
    "BadFile", "BadValue", "InferometerError", "Report", "TrainReport", "UnknownName", "__version__", "analyze",
    "train",
]  # fmt: skip
