"""The page's own files: short lines, and colours that stand in one place for the page and for pictures."""

from __future__ import annotations

import re
from pathlib import Path

from conftest import ROOT

from inferometer.views.plots.palette import DARK, LIGHT, palette_css
from inferometer.web.page_files import static

COLOR = re.compile(r"#(?:[0-9a-fA-F]{8}|[0-9a-fA-F]{6})\b|[:\"' ]#[0-9a-fA-F]{3}\b")
PALETTE = ROOT / "src/inferometer/views/plots/palette.py"


def lines(*patterns: str) -> list[tuple[Path, int, str]]:
    return [
        (path, number, line)
        for pattern in patterns
        for path in sorted((ROOT / "src/inferometer").glob(pattern))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]


def test_lines_of_scripts_are_short() -> None:
    scripts = lines("web/static/*.js")
    assert len(scripts) > 1000
    assert [(path.name, number) for path, number, line in scripts if len(line) > 120] == []


def test_colours_stand_in_the_palette_alone() -> None:
    places = lines("**/*.py", "web/static/*.js", "web/static/*.css", "web/static/*.html")
    coloured = {path for path, _, line in places if COLOR.search(line)}
    assert coloured == {PALETTE}


def test_every_variable_of_the_page_is_in_the_palette() -> None:
    used = {name for path in static().glob("*.css") for name in re.findall(r"var\(--([\w-]+)\)", path.read_text())}
    script = (static() / "theme.js").read_text()
    used |= {
        name for names in re.findall(r"(?:NEUTRAL|NAMES) = \[(.*)\]", script) for name in re.findall(r'"(\w+)"', names)
    }
    assert used == set(LIGHT) == set(DARK)
    assert all(palette_css().count(f"--{name}: ") == 3 for name in LIGHT), "light, dark by the system, dark by choice"
