"""``inferometer simulate --find-capacity``: the highest rate at which what was promised holds."""

from __future__ import annotations

from typing import Any

import click

from .output import deliver, show_rich, table_csv


def capacity(model: str, gpu: str, goals: dict[str, float], ways: dict[str, Any], words: dict[str, Any],
             served: dict[str, Any], form: tuple[bool, bool, str | None]) -> int:  # fmt: skip
    """Search, then serve the requests once more at the rate that was found, and show both."""
    import msgspec

    from ..serving.runs import sized
    from .progress import progress

    search = {"share": ways["goodput_share"], "address": ways["backend_address"]}
    search |= {key: ways[key] for key in ("jobs", "backend")}
    with progress("trying rates", None, "rates") as reached:
        result = sized(model, gpu, goals, search, served, words, reached)
    cut = result["interrupted"]
    if cut:
        click.echo(f"interrupted: {len(result['tried']):,} rates were tried, and the search was not over", err=True)
    as_json, as_csv, output = form
    if as_json:
        deliver(msgspec.json.format(msgspec.json.encode(result), indent=1), output)
    elif as_csv:
        deliver(table_csv(result["tried"] or [{"request_rate": "", "good": "", "holds": ""}]), output)
    else:
        from ..views.serving import capacity as table

        show_rich(table(result), output)
    return 130 if cut else 0 if result["request_rate"] else 1
