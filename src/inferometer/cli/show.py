"""``inferometer show``: what the catalogue holds."""

from __future__ import annotations

import click

from .options import OUTPUT, Command, names_completion, options
from .output import Form, as_json, deliver, show_page, table_csv

_EXAMPLES = ("models", "hardware h200", "models deepseek-v3 --json")
_KINDS = ("models", "hardware", "hosts", "engines", "precisions", "usecases", "agents", "families")


def _names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of the kind that was typed, for a shell."""
    names: list[str] = names_completion(context.params["kind"])(context, parameter, incomplete)
    return names


@click.command(cls=Command, epilog=f"KIND: {', '.join(_KINDS)}.", examples=_EXAMPLES)
@click.argument("kind", metavar="KIND", shell_complete=names_completion(_KINDS))
@click.argument("name", required=False, shell_complete=_names)
@options(OUTPUT)
def show(kind: str, name: str | None, form: Form) -> int:
    """List the catalogue: all entries of a kind, or everything about one NAME."""
    from ..views.text.listing import KINDS, detail, detail_page, listing, rows_page

    if kind not in KINDS:
        from ..base.errors import UnknownName

        raise UnknownName("list", kind, KINDS)
    rows = [detail(kind, name)] if name else listing(kind)
    if form.as_json:
        deliver(as_json(rows[0] if name else rows), form.output)
    elif form.as_csv:
        deliver(table_csv(rows), form.output)
    elif name:
        from ..specs.catalog import dotted

        show_page(detail_page(dotted(rows[0])), form)
    else:
        show_page(rows_page(rows), form)
    return 0
