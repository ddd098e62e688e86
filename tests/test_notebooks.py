"""The notebooks stay true: every code cell runs, and shows what the committed notebook shows."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "tools"))
from notebooks import MOST_BYTES, code_cells, displayed_text, notebooks, one_spaced, pages


def run_cell(source: str, names: dict[str, Any]) -> list[str]:
    """What a cell shows: printed lines, then its last line if that is a value, as a notebook does without a kernel."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) and not source.rstrip().endswith(";") else None
    value, printed = None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    texts = [printed.getvalue(), "" if value is None else displayed_text(forms(value))]
    return [text for text in map(one_spaced, texts) if text]


def forms(value: object) -> dict[str, str]:
    """How a notebook would show a value; pictures are made, but painted only in a kernel (`make release-check`)."""
    if hasattr(value, "savefig"):
        return {"image/png": ""}
    if hasattr(value, "_repr_html_"):
        return {"text/html": value._repr_html_()}
    return {"text/plain": repr(value)}


@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_cells_show_what_is_committed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    if "to_pandas" in path.read_text(encoding="utf-8"):
        pytest.importorskip("pandas")
    for data in path.parent.glob("*.csv"):
        shutil.copy(data, tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, (source, committed) in enumerate(code_cells(path), 1):
        shows = run_cell(source, names)
        assert shows == committed, f"code cell {number} of {path.name} shows something else: `make notebooks`\n{source}"


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_notebooks_are_small_and_say_nothing_of_the_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    notebook = json.loads(text)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert all(cell["metadata"] == {} for cell in notebook["cells"])
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1)), "not run from the first cell to the last: `make notebooks`"


def test_figures_of_tables_and_printed_lines_are_compared() -> None:
    table = {"text/html": "<style>td {width: 5px}</style><td>TTFT</td><td>193&nbsp;ms</td>", "text/plain": "<Report>"}
    assert one_spaced(displayed_text(table)) == "TTFT 193 ms"
    assert displayed_text({"image/png": "…", "text/plain": "<Figure>"}) == ""
    assert run_cell("x = 0.5\nprint(x)\nx + 1", {}) == ["0.5", "1.5"]
    assert run_cell("3;", {}) == []


def test_every_notebook_is_a_page() -> None:
    assert [page.name[0] for page in pages()] == ["1", "2", "3", "4", "5"]
    for page in pages():
        assert page.markdown.startswith(f"# {page.title}\n")
        assert "../docs/" not in page.markdown and ".ipynb" not in page.markdown
        assert page.files and all(f"]({name})" in page.markdown for name in page.files)
        assert all(data.startswith(b"\x89PNG") for data in page.files.values())
