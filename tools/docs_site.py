"""What the docs site needs beside docs/: pages that live elsewhere, folders in `nav`, links as a code host reads them.

mkdocs loads it as a hook (mkdocs.yml); `make docs` builds the site.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "notebooks/README.md")  # pages of the site outside of docs/
FENCE = re.compile(r"^ *(```|~~~)")
ITEM = re.compile(r"^ *([-*]|\d+\.) ")
PRICE = re.compile(r"^\$ (?=per |an? |of |\d)")  # a line of output about dollars, which is no command behind a prompt
FORMULA = re.compile(r"<td[^>]*><code>[^<]*·[^<]*</code>")
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Fill the folders of `nav`, and leave out pages that are not written."""
    config["nav"] = _entries(config["nav"])
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not lie in docs/."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    for notebook in _notebooks():
        files.append(File.generated(config, f"notebooks/{notebook.name}.md", content=notebook.markdown))
        for path, content in notebook.files.items():
            files.append(File.generated(config, f"notebooks/{path}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """A page as Python-Markdown and the site's own addresses want it."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # its text is the navigation
    return "\n".join(_adapted(markdown.splitlines(), page.file.src_uri, files))


def on_page_content(html: str, **_: Any) -> str:
    """Long formulas break after a product sign, not inside a name."""
    return FORMULA.sub(lambda code: code[0].replace("·", "·<wbr>"), html)


# ------------------------------------------------------------------ navigation


def _entries(entries: list[Any]) -> list[Any]:
    """``["api/*", "gone.md"]`` → the pages of docs/api; a page or section that has nothing is left out."""
    filled: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            ((title, value),) = entry.items()
            inner = _entries(value if isinstance(value, list) else [value])
            if isinstance(value, str) and not value.endswith("/*"):
                inner = inner[0] if inner else []
            if inner:
                filled.append({title: inner})
        else:
            filled += _pages(entry)
    return filled


def _pages(entry: str) -> list[str]:
    if not entry.endswith("/*"):
        return [entry] if entry in OUTSIDE or (ROOT / "docs" / entry).exists() else []
    folder = entry[:-2]
    if folder == "notebooks":
        return ["notebooks/README.md", *(f"notebooks/{notebook.name}.md" for notebook in _notebooks())]
    names = sorted(path.name for path in (ROOT / "docs" / folder).glob("*.md"))
    linked: list[str] = []
    for index in (ROOT / "docs" / folder / "README.md", ROOT / "docs" / f"{folder}.md"):
        if index.exists():
            linked += re.findall(rf"\]\((?:{folder}/)?([\w-]+\.md)", index.read_text(encoding="utf-8"))
    order = {name: place for place, name in reversed(list(enumerate(["README.md", *linked])))}
    return [f"{folder}/{name}" for name in sorted(names, key=lambda name: order.get(name, len(order) + 1))]


def _notebooks() -> list[Any]:
    sys.path.insert(0, str(ROOT / "tools"))
    from notebooks import pages

    return list(pages())


# ------------------------------------------------------------------ text


def _adapted(lines: list[str], path: str, files: Files) -> Iterator[str]:
    """Blank lines before lists, deeper lists by four spaces, links between pages; code stays as it is."""
    fenced, before = False, ""
    for line in lines:
        if FENCE.match(line):
            fenced = not fenced
        elif fenced:
            line = PRICE.sub("\u200b$ ", line)
        else:
            if ITEM.match(line):
                indent = len(line) - len(line.lstrip())
                line = " " * indent + line if 0 < indent < 4 else line
                if before.strip() and not ITEM.match(before) and not before.startswith(" "):
                    yield ""
            line = LINK.sub(lambda link: _link(link, path, files), line)
        yield line
        before = line


def _link(link: re.Match[str], path: str, files: Files) -> str:
    """A link that a code host follows, as the site has it; a file of the sources is no page, and only named."""
    text, target = link[1], link[2]
    where, hash_, anchor = target.partition("#")
    if not where or re.match(r"[a-z]+:", where):
        return link[0]
    home = "" if path in OUTSIDE else "docs"
    absolute = posixpath.normpath(posixpath.join(home, posixpath.dirname(path), where))
    absolute = re.sub(r"^notebooks/(\d.*)\.ipynb$", r"docs/notebooks/\1.md", absolute)
    page = "README.md" if absolute == "docs" else absolute.removeprefix("docs/")
    if files.get_file_from_path(page) is None and not absolute.startswith("docs/") and (ROOT / absolute).exists():
        return text.lstrip("!")[1:-1]
    return f"{text}({posixpath.relpath(page, posixpath.dirname(path) or '.')}{hash_}{anchor})"
