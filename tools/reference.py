"""Write docs/reference: keys of JSON, file formats, engines, devices, models, operators, schedulers; the results of
docs/python; and the formulas between the markers of docs/concepts. All of it comes from the code; a test compares.

make schema            # writes them, and docs/flags.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from reference_pages import catalogue, engines, files, formulas, json_keys, operators, results, serving

DOCS = Path(__file__).parent.parent / "docs"
PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "json.md": ("every key of `--json`, with type, unit and meaning", json_keys.page),
    "files.md": ("every file that is read or written, key by key", files.page),
    "engines.md": ("engines: defaults, rules by version and device, figures, each with its source", engines.page),
    "devices.md": ("devices with their main figures", catalogue.devices),
    "device-sources.md": ("where each figure of a device comes from", catalogue.device_sources),
    "models.md": ("models of the catalogue, and the model types that are read", catalogue.models),
    "formats.md": ("number formats, hosts and use cases", catalogue.formats),
    "operators.md": ("operators: FLOPs and bytes in formulas", operators.page),
    "serving.md": ("schedulers, routers, autoscaling policies, distributions", serving.page),
}
INDEX = """# Reference

Written from the code and its data by `make schema`; a test compares.

- [flags](../flags.md): every flag of every command, with its default
"""


def pages() -> dict[Path, str]:
    """Every file that the tool writes, with its text: ``pages()[DOCS / "reference" / "json.md"]``"""
    index = INDEX + "".join(f"- [{name.removesuffix('.md')}]({name}): {what}\n" for name, (what, _) in PAGES.items())
    texts = {DOCS / "reference" / "README.md": index}
    texts |= {DOCS / "reference" / name: write() for name, (_, write) in PAGES.items()}
    texts[DOCS / "python" / "results.md"] = results.page()
    for path in sorted((DOCS / "concepts").glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if formulas.MARKER.search(page):
            texts[path] = formulas.filled(page)
    return texts


if __name__ == "__main__":
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
