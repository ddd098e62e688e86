"""``inferometer show``: what the catalogue holds."""

from __future__ import annotations

import click

from .options import OUTPUT, options
from .output import deliver, table_csv


@click.command()
@click.argument("kind", metavar="models|hardware|engines|precisions|usecases|families")
@click.argument("name", required=False)
@options(OUTPUT)
def show(kind: str, name: str | None, as_json: bool, as_csv: bool, output: str | None) -> int:
    """What the catalogue holds: all of a kind, or everything about one NAME."""
    from ..views.text.listing import KINDS, detail, listing, shown

    if kind not in KINDS:
        from ..base.errors import UnknownName

        raise UnknownName("list", kind, KINDS)
    rows = [detail(kind, name)] if name else listing(kind)
    if as_json:
        import msgspec

        deliver(msgspec.json.format(msgspec.json.encode(rows[0] if name else rows), indent=1), output)
    elif as_csv:
        deliver(table_csv(rows), output)
    elif name:
        from ..specs.catalog import dotted

        deliver("".join(f"{k} = {shown(k, v)}\n" for k, v in dotted(rows[0]).items()), output)
    else:
        from ..views.text.listing import plain_table

        deliver(plain_table(rows, shown), output)
    return 0
