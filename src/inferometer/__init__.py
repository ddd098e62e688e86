"""inferometer: predicts, explains, measures and plans LLM inference.

import inferometer
report = inferometer.analyze("llama-3.1-8b", gpu="h200", batch_size=8, input_len=1024, output_len=128)
print(report.metrics.ttft_ms, report.metrics.tpot_ms, report.summary)
"""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False  # that of `typing`, which takes long to load: Ctrl-C shall find the command line at work by then
if TYPE_CHECKING:  # the same names as in _LAZY, for editors and type checkers
    from .base.errors import BadFile as BadFile
    from .base.errors import BadValue as BadValue
    from .base.errors import InferometerError as InferometerError
    from .base.errors import UnknownName as UnknownName
    from .inference.analyze import analyze as analyze
    from .inference.report import Report as Report
    from .profiling.profile import profile as profile
    from .search.search import search as search
    from .search.search_result import Search as Search
    from .search.session_search import session_search as session_search
    from .search.session_search_result import SessionSearch as SessionSearch
    from .search.training_search import training_search as training_search
    from .search.training_search_result import TrainingSearch as TrainingSearch
    from .sensitivity.sensitivity import sensitivity as sensitivity
    from .sensitivity.sensitivity_report import Sensitivity as Sensitivity
    from .sensitivity.training_sensitivity import TrainingSensitivity as TrainingSensitivity
    from .sensitivity.training_sensitivity import training_sensitivity as training_sensitivity
    from .serving.capacity import Capacity as Capacity
    from .serving.capacity import find_capacity as find_capacity
    from .serving.metrics import metrics as metrics
    from .serving.outcome import Outcome as Outcome
    from .serving.simulate import simulate as simulate
    from .serving.step_clock import StepClock as StepClock
    from .serving.synthetic import synthetic as synthetic
    from .serving.trace import Trace as Trace
    from .serving.trace import read_trace as read_trace
    from .sweep.sweep import Sweep as Sweep
    from .sweep.sweep import sweep as sweep
    from .sweep.training_sweep import TrainingSweep as TrainingSweep
    from .sweep.training_sweep import training_sweep as training_sweep
    from .training.train import train as train
    from .training.training_report import TrainReport as TrainReport
    from .validation.validate import validate as validate

__version__ = "0.2.0"

_LAZY = {  # public name: the module that is loaded when the name is first used
    "BadFile": "base.errors",
    "BadValue": "base.errors",
    "Capacity": "serving.capacity",
    "InferometerError": "base.errors",
    "Outcome": "serving.outcome",
    "Report": "inference.report",
    "Search": "search.search_result",
    "Sensitivity": "sensitivity.sensitivity_report",
    "SessionSearch": "search.session_search_result",
    "StepClock": "serving.step_clock",
    "Sweep": "sweep.sweep",
    "Trace": "serving.trace",
    "TrainReport": "training.training_report",
    "TrainingSearch": "search.training_search_result",
    "TrainingSensitivity": "sensitivity.training_sensitivity",
    "TrainingSweep": "sweep.training_sweep",
    "UnknownName": "base.errors",
    "analyze": "inference.analyze",
    "find_capacity": "serving.capacity",
    "metrics": "serving.metrics",
    "profile": "profiling.profile",
    "read_trace": "serving.trace",
    "search": "search.search",
    "sensitivity": "sensitivity.sensitivity",
    "session_search": "search.session_search",
    "simulate": "serving.simulate",
    "sweep": "sweep.sweep",
    "synthetic": "serving.synthetic",
    "train": "training.train",
    "training_search": "search.training_search",
    "training_sensitivity": "sensitivity.training_sensitivity",
    "training_sweep": "sweep.training_sweep",
    "validate": "validation.validate",
}
__all__ = ["__version__", *_LAZY]


class _Package(ModuleType):
    """Keeps public functions callable where a package has the same name.

    Importing ``inferometer.search.space`` would bind ``inferometer.search`` to the package; the function stays instead.
    """

    def __dir__(self) -> list[str]:
        """The verbs and nothing else: what Tab shows after ``inferometer.``; `__all__` has classes and errors, too."""
        return [name for name in sorted(_LAZY) if name.islower()]

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _LAZY or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def _views() -> ModuleType:
    """What draws results: `base.result` asks for it here, since the root alone knows every floor."""
    from .views import results

    return results


def __getattr__(name: str) -> object:
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
