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


def test_scripts_import_what_there_is_and_export_what_is_used() -> None:
    scripts = {path.name: path.read_text(encoding="utf-8") for path in static().glob("*.js")}
    used = {(other, name) for text in scripts.values() for other, name in _imports(text)}
    offered = {
        (script, name)
        for script, text in scripts.items()
        for name in re.findall(r"^export (?:async )?(?:function|const|let|class) (\w+)", text, re.M)
    }
    assert sorted(used - offered) == [], "imported, but not there"
    dead = [(script, name) for script, name in sorted(offered - used) if scripts[script].count(name) == 1]
    assert dead == [], "exported, but used by none"
    for script, text in scripts.items():
        body = re.sub(r"^import .*?;$", "", text, flags=re.M | re.S)
        idle = [name for _, name in _imports(text) if not re.search(rf"\b{name}\b", body)]
        assert idle == [], f"{script} imports what it does not use"
        assert text.count("\n") <= 400, script


def _imports(text: str) -> list[tuple[str, str]]:
    """The scripts and names that one imports."""
    return [
        (script, name.partition(" as ")[0].strip())
        for names, script in re.findall(r"^import \{([^}]*)\} from \"\./([\w.-]+)\"", text, re.M)
        for name in names.split(",")
        if name.strip()
    ]
