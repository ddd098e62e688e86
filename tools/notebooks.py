"""Run the notebooks and write what their cells show; compare it with what is committed; make their pages for the site.

make notebooks                        # runs each one in a kernel and writes its outputs (needs the extra `notebook`)
python tools/notebooks.py --check     # runs each one in a kernel and says which outputs differ; writes nothing
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "notebooks"
MOST_BYTES = 400_000  # of a notebook with its pictures
COLOURS = 128  # of a picture
# All that a notebook says about the machine that ran it: nothing that changes from one run to the next.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class Page(NamedTuple):
    """A notebook as a page of the site: Markdown, and the pictures that lie beside it."""

    name: str
    title: str
    markdown: str
    files: dict[str, bytes]


def notebooks() -> list[Path]:
    """The notebooks in the order of their numbers."""
    return sorted(FOLDER.glob("[0-9]*.ipynb"))


def code_cells(path: Path) -> list[tuple[str, list[str]]]:
    """The code of each cell, and what it shows according to the file."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [("".join(cell["source"]), shown(cell["outputs"])) for cell in cells if cell["cell_type"] == "code"]


def shown(outputs: list[dict[str, Any]]) -> list[str]:
    """What a reader can read of a cell's outputs: printed lines, tables without their tags; pictures have none."""
    texts: list[str] = []
    for output in outputs:
        if output["output_type"] == "stream":
            texts.append("".join(output["text"]))
        elif output["output_type"] == "error":
            texts.append(f"{output['ename']}: {output['evalue']}")
        else:
            texts.append(displayed_text({kind: "".join(data) for kind, data in output["data"].items()}))
    return [text for text in map(one_spaced, texts) if text]


def displayed_text(data: dict[str, str]) -> str:
    """Of an object's forms the one that is compared: HTML before text, and nothing of a picture."""
    if "image/png" in data:
        return ""
    if "text/html" in data:
        without_styles = re.sub(r"<(style|script)\b.*?</\1>", " ", data["text/html"], flags=re.S)
        return html.unescape(re.sub(r"<[^>]*>", " ", without_styles))
    return data["text/plain"]


def one_spaced(text: str) -> str:
    """Lines without blank ones and without columns' padding."""
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


# ------------------------------------------------------------------ in a kernel


def execute(path: Path) -> dict[str, Any]:
    """The notebook after a run in a kernel of its own, in a folder with copies of the files that it reads."""
    import nbformat
    from nbclient import NotebookClient

    notebook: dict[str, Any] = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        for data in FOLDER.glob("*.csv"):
            shutil.copy(data, folder)
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, coalesce_streams=True, resources=resources).execute()
    notebook["metadata"] = METADATA
    for number, cell in enumerate(notebook["cells"], 1):
        cell["id"] = f"cell-{number:02}"
        cell["metadata"] = {}
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                raise SystemExit(f"{path.name}, cell {number} writes to stderr: {output['text']}")
            output.get("metadata", {}).clear()
            _pack(output.get("data", {}))
    return notebook


def _pack(data: dict[str, str]) -> None:
    """Pictures with a palette: a third of the bytes."""
    from PIL import Image

    if "image/png" in data:
        packed = io.BytesIO()
        picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).convert("RGB")
        few = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # keeps rare colours
        few.save(packed, "png", optimize=True)
        data["image/png"] = base64.b64encode(packed.getvalue()).decode()


def update(path: Path) -> None:
    """Run the notebook and write it with its outputs."""
    import nbformat

    text = nbformat.writes(execute(path))
    if len(text.encode()) > MOST_BYTES:
        raise SystemExit(f"{path.name} has {len(text.encode()):,} bytes; at most {MOST_BYTES:,}")
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT)}, {len(text.encode()) / 1000:.0f} kB")


def check(path: Path) -> bool:
    """Run the notebook; does every cell show what the file says?"""
    after = [shown(cell["outputs"]) for cell in execute(path)["cells"] if cell["cell_type"] == "code"]
    differ = [n for n, (cell, now) in enumerate(zip(code_cells(path), after, strict=True), 1) if cell[1] != now]
    print(
        f"{path.name}: " + (f"code cells {differ} show something else: `make notebooks`" if differ else "as committed")
    )
    return not differ


# ------------------------------------------------------------------ on the site


def pages() -> list[Page]:
    """Every notebook as a page: ``[page.title for page in pages()]``"""
    return [_page(path) for path in notebooks()]


def _page(path: Path) -> Page:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts: list[str] = []
    files: dict[str, bytes] = {}
    heading = title = ""
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            headings = re.findall(r"^#+ (.*)$", source, re.M)
            title = title or headings[0]
            heading = headings[-1] if headings else heading
            parts.append(source.replace("](../docs/", "](../").replace(".ipynb)", ".md)"))
        else:
            parts.append(f"```python\n{source}\n```")
            parts += _outputs(cell["outputs"], path.stem, heading, files)
    return Page(path.stem, title, "\n\n".join(parts) + "\n", files)


def _outputs(outputs: list[dict[str, Any]], stem: str, heading: str, files: dict[str, bytes]) -> Iterator[str]:
    """What a cell shows, in Markdown; its pictures go into ``files``."""
    for output in outputs:
        data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
        if "image/png" in data:
            name = f"{stem}-{len(files) + 1}.png"
            files[name] = base64.b64decode(data["image/png"])
            yield f"![Picture: {heading}]({name})"
        elif "text/html" in data:
            lines = (line.strip() for line in data["text/html"].splitlines())
            yield "\n".join(
                ('<div style="overflow-x: auto">', *filter(None, lines), "</div>")
            )  # a blank line would end it in Markdown
        else:
            yield f"```text\n{(data.get('text/plain') or ''.join(output.get('text', ''))).rstrip()}\n```"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("name", nargs="*", help="beginnings of names, such as 3; all without them")
    given = parser.parse_args()
    chosen = [path for path in notebooks() if path.name.startswith(tuple(given.name or [""]))]
    if given.check:
        sys.exit([check(path) for path in chosen].count(False))
    for path in chosen:
        update(path)


if __name__ == "__main__":
    main()
