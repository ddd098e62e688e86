"""Where a command's result goes: stdout, or a file that was named."""

from __future__ import annotations

from typing import Any

import click


def table_csv(rows: list[dict[str, Any]]) -> str:
    """Rows as CSV text."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def deliver(data: str | bytes, output: str | None) -> None:
    """To a file if one was named, else to stdout."""
    if output is not None:
        from ..views.files import write

        click.echo(f"wrote {write(output, data)}", err=True)
    else:
        text = data.decode() if isinstance(data, bytes) else data
        click.echo(text, nl=not text.endswith("\n"))


def show_rich(renderable: Any, output: str | None) -> None:
    """A rich renderable, as text into a file or in colour to the terminal."""
    from ..views.text import terminal

    screen = terminal.console()
    if output is not None:
        with screen.capture() as captured:
            screen.print(renderable)
        deliver(captured.get(), output)
    else:
        screen.print(renderable)
