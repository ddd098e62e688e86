"""One file with everything inside: the page, its scripts, the charts' library and a report; opens without a server."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from .. import __version__
from ..inference.explain import explain
from ..inference.placement import placement
from ..inference.report import Report
from ..inference.request import Request
from ..training.training_report import TrainReport
from ..views.plots.palette import palette_css
from ..views.plots.roofline import roofline_chart
from ..views.plots.structure import graph
from .catalogue import Control
from .page_files import plotly, static
from .runs import training_answer

# nothing is loaded from anywhere: scripts are in the file, as text or as data: addresses
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:"
)
_PALETTE = re.compile(r'<link rel="stylesheet" href="/static/palette.css">')
_SHEET = re.compile(r'<link rel="stylesheet" href="/static/([\w.-]+)">')
_ICON = re.compile(r'href="/static/([\w.-]+\.svg)"')
_MAIN = re.compile(r'<script type="module" src="/static/([\w.-]+)"></script>')
_IMPORT = re.compile(r"""((?:\bfrom|\bimport)\s*\(?\s*)["']\./([\w.-]+\.js)["']""")


def page(request: Request, report: Report, command: str, controls: Sequence[Control]) -> str:
    """The page of a report, every operator explained: ``page(request, report_of(request), "inferometer …", [])``"""
    names = dict.fromkeys(op.name for phase in report.phases.values() for op in phase.ops)
    given = {
        "report": {
            **report.to_dict(),
            "command": command,
            "graph": graph(report, request.model),
            "roofline_chart": roofline_chart(report),
        },
        "controls": list(controls),
        "catalogue": {"version": __version__},
        "cluster": {**msgspec.to_builtins(placement(request)), "command": f"{command} --cluster"},
        "explanations": [one for name in names for one in explain(request, name)],
    }
    return filled((static() / "index.html").read_text(encoding="utf-8"), given)


def training_page(report: TrainReport, command: str) -> str:
    """The page of a training step whose report has its timeline: ``training_page(report, "inferometer train …")``"""
    given = {"training": {**training_answer(report), "command": command}, "catalogue": {"version": __version__}}
    return filled((static() / "index.html").read_text(encoding="utf-8"), given)


def filled(html: str, given: dict[str, Any]) -> str:
    """A page with all that it would ask for put in. Whole texts stand in for patterns, so that none is read as one."""
    inside = msgspec.json.encode(given).decode().replace("<", "\\u003c").replace("\u2028", "\\u2028")
    head = f'<meta http-equiv="content-security-policy" content="{POLICY}">'
    html = html.replace("<head>", f"<head>\n  {head}", 1)
    html = _PALETTE.sub(lambda _: f"<style>\n{palette_css()}</style>", html)
    html = _SHEET.sub(lambda match: f"<style>\n{_text(match[1])}</style>", html)
    html = _ICON.sub(lambda match: f'href="{_data(_text(match[1]), "image/svg+xml")}"', html)
    return _MAIN.sub(lambda match: _modules(match[1], inside), html)


def _text(name: str) -> str:
    return (static() / name).read_text(encoding="utf-8")


def _data(text: str, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def _script(text: str) -> str:
    """A script that stands in a page: nothing in it may look like its end."""
    return re.sub(r"</(script)", r"<\\/\1", text, flags=re.I)


def _modules(main: str, given: str) -> str:
    """Modules as data, which find each other by name: an address of data has no place that others could be beside."""
    named = {
        f"inferometer/{path.name}": _data(
            _IMPORT.sub(r'\1"inferometer/\2"', path.read_text(encoding="utf-8")), "text/javascript"
        )
        for path in sorted(static().glob("*.js"))
    }
    charts = _script(plotly().read_text(encoding="utf-8"))  # text, which chart.js runs with the first chart
    return (
        f'<script type="text/plain" id="plotly">{charts}</script>\n'
        f'  <script type="application/json" id="given">{given}</script>\n'
        f'  <script type="importmap">{msgspec.json.encode({"imports": named}).decode()}</script>\n'
        f'  <script type="module">import "inferometer/{main}";</script>'
    )
