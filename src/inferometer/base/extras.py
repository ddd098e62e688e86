"""Libraries that only some commands need: the extra that brings each, and the sentence where it is missing.

matplotlib = load_library("matplotlib", "a picture")  # or: a picture needs matplotlib: pip install 'inferometer[plot]'
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from .errors import BadValue

EXTRAS = {  # library: the extra of pyproject.toml that has it
    "matplotlib": "plot",
    "starlette": "web",
    "uvicorn": "web",
    "plotly": "web",
    "huggingface_hub": "hub",
    "torch": "profile",
    "transformers": "profile",
    "distributed": "cluster",
    "ray": "cluster",
    "pyarrow": "parquet",
    "pandas": "notebook",
}


def install_line(library: str) -> str:
    """``install_line("ray")  # "pip install 'inferometer[cluster]'"``"""
    return f"pip install 'inferometer[{EXTRAS[library]}]'"


def is_installed(library: str) -> bool:
    """Whether a library is there, without loading it: ``is_installed("vllm")``"""
    return importlib.util.find_spec(library) is not None


def require_library(purpose: str, *libraries: str, otherwise: str = "") -> None:
    """Refuse before any work is done: ``require_library("`plot`", "matplotlib")``; ``otherwise`` ends the sentence."""
    for library in libraries:
        if not is_installed(library):
            raise BadValue(f"{purpose} needs {library}: {install_line(library)}{otherwise}")


def load_library(name: str, purpose: str, otherwise: str = "") -> Any:
    """An optional library, loaded now; a submodule, too: ``load_library("pyarrow.parquet", "a Parquet file")``"""
    library = name.partition(".")[0]
    require_library(purpose, library, otherwise=otherwise)
    try:
        return importlib.import_module(name)
    except ImportError as error:  # there, but broken
        raise BadValue(f"{purpose} needs {library}, which cannot be loaded here: {error}") from None
