"""A command that lacks a library says which one line installs it."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Ran

from inferometer import BadValue
from inferometer.base import extras

MODEL = ("llama-3.1-8b", "--gpu", "h200")
COMMANDS = [  # the library that is not there, and a command that needs it
    ("matplotlib", ("analyze", *MODEL, "--plot", "out")),
    ("matplotlib", ("sweep", *MODEL, "--batch-size", "1,2", "--plot", "out")),
    ("matplotlib", ("search", *MODEL, "--plot", "out")),
    ("matplotlib", ("simulate", *MODEL, "--plot", "out")),
    ("matplotlib", ("sensitivity", *MODEL, "--plot", "out")),
    ("matplotlib", ("train", *MODEL, "--plot", "out")),
    ("matplotlib", ("validate", *MODEL, "--measured", "m.csv", "--plot", "out")),
    ("plotly", ("analyze", *MODEL, "--html", "report.html")),
    ("plotly", ("web", "--port", "0")),
    ("starlette", ("web", "--port", "0")),
    ("uvicorn", ("web", "--port", "0")),
    ("huggingface_hub", ("analyze", "somebody/new-9b")),
    ("torch", ("profile", "--kernels", "-o", "k.csv", "--device", "cpu")),
    ("torch", ("profile", "--quick", "--device", "cpu")),
    ("torch", ("profile", "qwen3-0.6b", "--device", "cpu")),
    ("transformers", ("profile", "qwen3-0.6b", "--device", "cpu")),
    ("distributed", ("sweep", *MODEL, "--batch-size", "1,2", "--backend", "dask", "-o", "points/")),
    ("ray", ("search", *MODEL, "--backend", "ray")),
    ("pyarrow", ("sweep", *MODEL, "--batch-size", "1,2", "-o", "points.parquet")),
    ("pyarrow", ("simulate", *MODEL, "--trace", "requests.parquet")),
    ("pyarrow", ("simulate", *MODEL, "--trace", "requests.csv.zst")),
]


@pytest.mark.parametrize(
    ("library", "command"), COMMANDS, ids=lambda value: value if isinstance(value, str) else value[0]
)
def test_a_command_says_what_installs_its_library(
    library: str, command: tuple[str, ...], run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("requests.parquet").write_bytes(b"PAR1")
    Path("requests.csv.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    for name in ("pyarrow", "zstandard", "compression.zstd") if library == "pyarrow" else (library,):
        monkeypatch.setitem(sys.modules, name, None)
    if library == "transformers":
        monkeypatch.setattr(extras, "is_installed", lambda name: name != library)  # also where torch is not there
    ran = run(*command)
    assert ran.code == 2 and not ran.out
    assert f"needs {library}: pip install 'inferometer[{extras.EXTRAS[library]}]'" in ran.err
    assert ran.err.startswith("inferometer: ") and ran.err.count("\n") == 1


def test_every_library_is_in_the_extra_that_is_named() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for library, extra in extras.EXTRAS.items():
        package = {"distributed": "dask[distributed]"}.get(library, library)
        assert any(line.startswith(package) for line in stated[extra]), library


def test_a_library_that_is_broken_is_no_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.py").write_text("raise ImportError('built for another NumPy')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    with pytest.raises(BadValue, match="a table needs pandas, which cannot be loaded here: built for another NumPy"):
        extras.load_library("pandas", "a table")
