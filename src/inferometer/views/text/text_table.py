"""Tables for people: columns that fold and give way on a narrow screen, in ASCII for awk, as GitHub's.

table = TextTable([Column("GPU", "<"), Column("tokens/s"), Column("shape", priority=4)])
table.add_row("h200", "1,217", "8×4096")
Page([table]).terminal(80)

A table that is wider than the screen folds its headings and texts, then leaves columns out, those with the highest
number as `priority` first, and says which under it. Where not even those with 0 fit, each row is a block of lines.
Figures are never cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import NamedTuple

from .paragraph import COLORS, Cell, Draw, Paragraph, Spans, css, escaped, folded, name_pieces, span, to_ascii, width_of

GAP = 2  # columns between two columns
MIN_ELASTIC = 8  # columns below which a drawn bar says nothing
BAR = 0.5  # of a cell on a page: how long the bar of a whole is, so that figures stand beside it
_ALIGN = {"<": "left", ">": "right", "^": "center"}
_RULE = "border-bottom:1px solid color-mix(in srgb,currentColor 30%,transparent)"
MIN_FOLDED = (22, 12)  # columns that texts keep before columns are left out, and before rows become blocks


class Column(NamedTuple):
    """A column of a table: ``Column("shape", priority=4)`` is left out before those of 3, 2 and 1; with 0, never."""

    title: str = ""
    align: str = ">"
    priority: int = 0
    style: str = ""
    name: str = ""  # what it is called where its title is empty
    folds: bool = False  # a text, which may go on in the next line
    elastic: int = 0  # columns at most of what is drawn: its cells are functions of a width

    @property
    def label(self) -> str:
        """Its name in one line."""
        return self.name or " ".join(self.title.split())


class Row(NamedTuple):
    """A row's cells, as many as there are columns, and the style of those that have none."""

    cells: list[Cell | Draw]
    style: str = ""
    section: bool = False  # a rule below it


class StackedBar:
    """Amounts by name, mark and colour as a bar, with a limit: blocks in a terminal, colours on a page.

    ``scale`` is what the whole bar stands for.
    """

    def __init__(self, pieces: list[tuple[str, float, str, str]], limit: float, scale: float) -> None:
        self.pieces, self.limit, self.scale = pieces, limit, scale

    def __call__(self, width: int) -> Spans:
        room, used, bar = width - 2, 0, [Cell("▕")]
        for _, amount, mark, colour in self.pieces:
            cells = min(max(1, round(amount / self.scale * room)) if amount else 0, room - used)
            bar.append(Cell(mark * cells, colour))
            used += cells
        rest, limit = [" "] * (room - used), min(room - 1, round(self.limit / self.scale * room))
        if used <= limit:
            rest[limit - used] = "┊"
        return [*bar, Cell("".join(rest) + "▏")]

    def html(self) -> str:
        """The bar on a page; the limit is a line across it."""
        parts = [
            f'<span title="{escape(name)}" style="width:{amount / self.scale:.2%};background:{COLORS[colour]}"></span>'
            for name, amount, _, colour in self.pieces
        ]
        limit = f"position:absolute;left:{self.limit / self.scale:.2%};top:-2px;bottom:-2px;border-left:2px dashed"
        return (
            '<div style="position:relative;display:flex;width:28em;max-width:40vw;height:1em;'
            'background:color-mix(in srgb,currentColor 12%,transparent)">'
            f'{"".join(parts)}<span style="{limit}"></span></div>'
        )


class TextTable:
    """Columns and rows: ``table = TextTable([Column("GPU", "<"), Column("TTFT")]); table.add_row("h200", "185 ms")``"""

    def __init__(
        self,
        columns: Iterable[Column],
        title: str = "",
        *,
        header: bool = True,
        elsewhere: str = "--csv or --json",
    ) -> None:
        self.columns, self.title, self.header, self.elsewhere = list(columns), title, header, elsewhere
        self.rows: list[Row] = []

    def add_row(self, *cells: str | Cell | Draw, style: str = "", section: bool = False) -> None:
        """One more row; cells that are missing at its end are empty."""
        full: list[Cell | Draw] = [Cell(c) if isinstance(c, str) else c for c in cells]
        full += [Cell("")] * (len(self.columns) - len(full))
        self.rows.append(Row(full, style, section))

    def lines(self, width: int | None) -> Iterator[Spans]:
        """Title, headings, rule, rows and what was left out."""
        if self.title:
            yield from Paragraph(self.title, style="bold").lines(width)
        fit = TableFit.of(self, width)
        if fit is None:
            yield from self._blocks(width)
            return
        if self.header:
            yield from fit.heading()
            yield [Cell("─" * fit.total)]
        for row in self.rows:
            yield from fit.row(row)
            if row.section:
                yield [Cell("─" * fit.total)]
        left_out = [c.label for n, c in enumerate(self.columns) if n not in fit.widths and not c.elastic]
        if left_out:
            names = ", ".join(dict.fromkeys(left_out))
            whole = TableFit.least(self, {n: TableFit.narrow(self, n) for n in range(len(self.columns))})
            note = f"left out: {names} (shown in {whole} columns, and with {self.elsewhere})"
            yield from Paragraph(note, style="dim").lines(width)
        if self.header:
            yield [Cell("")]

    def _blocks(self, width: int | None) -> Iterator[Spans]:
        """Each row as lines of a name and a value, where the screen is too narrow for columns."""
        for row in self.rows:
            first, *rest = row.cells
            if isinstance(first, Cell):
                yield from Paragraph(Cell(first.text, first.style or row.style or "bold")).lines(width)
            for column, cell in zip(self.columns[1:], rest, strict=True):
                if isinstance(cell, Cell) and cell.text:
                    label = f"  {column.label} " if column.label and self.header else "  "
                    yield from Paragraph(label, Cell(cell.text, cell.style or row.style)).lines(width)
        if self.header:
            yield [Cell("")]

    def texts(self) -> tuple[list[int], list[list[Cell]]]:
        """What programs read: the columns that are not drawn, and their cells."""
        kept = [n for n, column in enumerate(self.columns) if not column.elastic]
        rows = [[c if isinstance(c, Cell) else Cell("") for c in row.cells] for row in self.rows]
        return kept, [[cells[n] for n in kept] for cells in rows]

    def plain(self) -> str:
        """Aligned with two or more spaces between columns and none twice inside a cell; an empty cell is ``-``."""
        kept, rows = self.texts()
        heads = [[to_ascii(self.columns[n].label) or "-" for n in kept]] if self.header else []
        cells = [*heads, *([" ".join(cell.plain.split()) or "-" for cell in row] for row in rows)]
        widths = [max(len(row[n]) for row in cells) for n in range(len(kept))] if cells else []
        aligns = [">" if n and self.columns[column].align == ">" else "<" for n, column in enumerate(kept)]
        lines = (
            "  ".join(f"{text:{align}{size}}" for text, align, size in zip(row, aligns, widths, strict=True))
            for row in cells
        )
        title = f"{to_ascii(self.title)}\n" if self.title else ""
        return title + "".join(line.rstrip() + "\n" for line in lines) + ("\n" if self.header else "")

    def markdown(self) -> str:
        """A table of GitHub's; one without headings is a list."""
        kept, rows = self.texts()
        if not self.header:
            return "".join(f"- {escaped(' '.join(' '.join(c.text for c in row).split()))}\n" for row in rows)
        rules = {"<": ":--", ">": "--:", "^": ":-:"}
        lines = [[escaped(self.columns[n].label) for n in kept]]
        lines += [[rules[self.columns[n].align] for n in kept]]
        lines += [[escaped(" ".join(cell.text.split())) for cell in row] for row in rows]
        title = f"**{escaped(self.title)}**\n\n" if self.title else ""
        return title + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def html(self) -> str:
        """A table of a page with all columns; one with a title can be folded away."""
        head = "".join(_html_cell("th", Cell(c.title, "bold"), c, _RULE) for c in self.columns) if self.header else ""
        rows = [[*zip(row.cells, self.columns, strict=True)] for row in self.rows]
        lines = (
            "".join(_html_cell("td", cell, column, _RULE if row.section else "", row.style) for cell, column in cells)
            for cells, row in zip(rows, self.rows, strict=True)
        )
        body = "".join(f"<tr>{line}</tr>\n" for line in lines)
        table = (
            '<div style="overflow-x:auto"><table style="border-collapse:collapse;border:none;margin:4px 0;'
            f'font-size:inherit;font-variant-numeric:tabular-nums"><thead><tr>{head}</tr></thead>'
            f"<tbody>\n{body}</tbody></table></div>\n"
        )
        if not self.title:
            return table
        name = f'<summary style="font-weight:600;cursor:pointer">{escape(self.title)}</summary>'
        return f'<details open style="margin:6px 0">{name}\n{table}</details>\n'


def _html_cell(tag: str, cell: Cell | Draw, column: Column, rule: str, style: str = "") -> str:
    """A cell of a page's table: its text, its bar, or what is drawn in it."""
    if isinstance(cell, Cell) and not cell.text and not rule:
        return f"<{tag}></{tag}>"
    wrap = "min-width:9em" if column.folds and tag == "td" else "white-space:nowrap"
    look = [f"text-align:{_ALIGN[column.align]}", "padding:1px 8px", wrap, rule]
    if isinstance(cell, Cell):
        inner = escape(cell.text.strip(" ")).replace("\n", "<br>")
        look.append(css(cell.style or style or column.style))
        if column.align == "<" and cell.text.startswith("  "):
            look.append("padding-left:2em")
        if cell.bar:
            end = f"{min(cell.bar, 1.0) * BAR:.1%}"
            look += ["min-width:6.5em", f"background:linear-gradient(90deg,{COLORS['blue']}80 {end},#0000 {end})"]
    elif isinstance(cell, StackedBar):
        inner = cell.html()
    else:
        inner = f'<span style="font-family:monospace;white-space:pre">{"".join(map(span, cell(column.elastic)))}</span>'
    return f'<{tag} style="{";".join(filter(None, look))}">{inner}</{tag}>'


class TableFit(NamedTuple):
    """How a table fits a screen: the columns that stay, each with its width."""

    table: TextTable
    widths: dict[int, int]

    @staticmethod
    def of(table: TextTable, width: int | None) -> TableFit | None:
        """Columns are left out, the highest number of `priority` first; None where the rest is still too wide."""
        fits = (TableFit._within(table, width, floor) for floor in MIN_FOLDED)
        return next((fit for fit in fits if fit is not None), None)

    @staticmethod
    def _within(table: TextTable, width: int | None, floor: int) -> TableFit | None:
        least = {n: TableFit.narrow(table, n, floor) for n in range(len(table.columns))}
        while width is not None and TableFit.least(table, least) > width:
            last = max(least, key=lambda n: (table.columns[n].priority, n))
            if not table.columns[last].priority:
                return None
            del least[last]
        full = {n: TableFit.natural(table, n) for n in least}
        room = None if width is None else width - _total(least.values())
        widths = {}
        for n in sorted(least, key=lambda n: (table.columns[n].elastic > 0, full[n] - least[n])):
            more = full[n] - least[n] if room is None else max(0, min(full[n] - least[n], room))
            if not table.columns[n].elastic or more >= MIN_ELASTIC:
                widths[n] = least[n] + more
                room = None if room is None else room - more
        return TableFit(table, dict(sorted(widths.items())))

    @staticmethod
    def least(table: TextTable, widths: dict[int, int]) -> int:
        """The width that some columns take at least; drawn ones can vanish."""
        return _total(size for n, size in widths.items() if not table.columns[n].elastic)

    @staticmethod
    def natural(table: TextTable, n: int) -> int:
        """The width of a column in which nothing folds."""
        column = table.columns[n]
        if column.elastic:
            return column.elastic
        heads = column.title.split("\n") if table.header else []
        return max((width_of(text) for text in (*heads, *_texts(table, n))), default=0)

    @staticmethod
    def narrow(table: TextTable, n: int, floor: int = MIN_FOLDED[0]) -> int:
        """The width of a column whose heading is folded, and its texts, if they may be: not below the floor."""
        column = table.columns[n]
        if column.elastic:
            return 0
        heads = [word for word in column.title.split() if table.header]
        texts = list(_texts(table, n))
        size = max((width_of(text) for text in texts), default=0)
        if column.folds:
            pieces = (len(text) - len(text.lstrip()) + width_of(p) for text in texts for p in name_pieces(text))
            size = min(size, max((floor, *pieces)))
        return max((size, *map(width_of, heads)))

    @property
    def total(self) -> int:
        """Columns of the screen that it takes."""
        return _total(self.widths.values())

    def heading(self) -> Iterator[Spans]:
        """The headings, folded to their columns, at the bottom of as many lines as they need."""
        texts = {n: folded(self.table.columns[n].title, size) for n, size in self.widths.items()}
        height = max(len(lines) for lines in texts.values())
        cells = {n: [""] * (height - len(lines)) + lines for n, lines in texts.items()}
        for number in range(height):
            yield self._line({n: [Cell(lines[number], "bold")] for n, lines in cells.items()})

    def row(self, row: Row) -> Iterator[Spans]:
        """The lines of a row."""
        lines: dict[int, list[Spans]] = {}
        for n, size in self.widths.items():
            cell, column = row.cells[n], self.table.columns[n]
            if isinstance(cell, Cell):
                texts = folded(cell.text, size) if column.folds else [cell.text]
                lines[n] = [[Cell(text, cell.style or row.style or column.style)] for text in texts]
            else:
                lines[n] = [cell(size)]
        for number in range(max(len(texts) for texts in lines.values())):
            yield self._line({n: t[number] if number < len(t) else [] for n, t in lines.items()})

    def _line(self, cells: dict[int, Spans]) -> Spans:
        line: Spans = []
        for n, size in self.widths.items():
            align = self.table.columns[n].align
            space = size - sum(width_of(cell.text) for cell in cells[n])
            before = space if align == ">" else space // 2 if align == "^" else 0
            line += [Cell(" " * ((GAP if line else 0) + before)), *cells[n], Cell(" " * (space - before))]
        return line


def _total(widths: Iterable[int]) -> int:
    sizes = list(widths)
    return sum(sizes) + GAP * max(0, len(sizes) - 1)


def _texts(table: TextTable, n: int) -> Iterator[str]:
    for row in table.rows:
        cell = row.cells[n]
        if isinstance(cell, Cell):
            yield cell.text
