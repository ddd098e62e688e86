"""What people read of a result, in parts: paragraphs, tables, commands; for a terminal, in ASCII, Markdown or HTML.

page = Page([Paragraph("llama-3.1-8b", style="bold"), table, ShellCommand("vllm serve …")])
page.terminal(80)   # 80 columns wide; None: as wide as it is
page.plain()        # ASCII, columns two spaces apart, for awk
page.markdown()     # GitHub's tables
page.html()         # for a notebook, light or dark
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from .paragraph import Cell, Draw, Paragraph, Spans, folded, to_ascii
from .text_table import Column, StackedBar, TextTable

__all__ = ["Cell", "Column", "Draw", "Page", "Paragraph", "Part", "ShellCommand", "Spans", "StackedBar", "TextTable"]

ANSI = {
    "bold": "1",
    "dim": "2",
    "italic": "3",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"} | {ord("\t"): " "}


class ShellCommand:
    """A line of a shell, broken before flags with a backslash; what cannot be broken is longer than the screen."""

    def __init__(self, line: str) -> None:
        self.line = line

    def lines(self, width: int | None) -> Iterator[Spans]:
        """The lines of a screen; without one, the command is one line."""
        if self.line.startswith("#"):
            for text in comment_lines(self.line, width):
                yield [Cell(f"  {text}", "dim")]
            return
        text = f"  {self.line}" if width is None else shell_lines(self.line, min(100, width - 8))
        for line in text.split("\n"):
            yield [Cell(line)]

    def plain(self) -> str:
        """The command as it is: a shell reads it, in whatever letters; of comments, in ASCII."""
        return f"{to_ascii(self.line) if self.line.startswith('#') else self.line}\n"

    def markdown(self) -> str:
        """A block of code."""
        return f"```bash\n{shell_lines(self.line)}\n```\n"


def comment_lines(comment: str, width: int | None) -> list[str]:
    """A comment over several lines, each a comment; a command at its end stands in a line of its own, to be copied."""
    if width is None:
        return [comment]
    text, colon, command = comment.removeprefix("# ").partition(": ")
    if command.startswith("--") or " --" not in command:
        text, colon, command = comment.removeprefix("# "), "", ""
    lines = [f"# {line}" for line in folded(text + colon.rstrip(), max(width - 4, 20))]
    return [*lines, f"#   {command}"] if command else lines


def shell_lines(command: str, width: int = 100) -> str:
    """A command over several lines, as a shell reads them: broken before flags (and in long lists), to be copied.

    Comments and what stands in quotes are not broken: a shell would read them otherwise.
    """
    from textwrap import TextWrapper

    if command.startswith("#"):
        return f"  {command}"
    lines, open_quote = [""], False
    pieces = re.split(r" (?=--)", command)
    if not re.search("['\"]", command):
        lists = TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        pieces = [part for piece in pieces for part in lists.wrap(piece)]
    for piece in pieces:
        if lines[-1] and not open_quote and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + piece
        open_quote = lines[-1].count("'") % 2 == 1
    return "  " + " \\\n    ".join(lines)


Part = Paragraph | TextTable | ShellCommand


class Page:
    """Parts below each other: ``Page([Paragraph("llama-3.1-8b", style="bold")]).terminal(80)``"""

    def __init__(self, parts: Iterable[Part | Page]) -> None:
        self.parts: list[Part] = []
        for part in (one for p in parts for one in (p.parts if isinstance(p, Page) else [p])):
            last = self.parts[-1] if self.parts else None
            if isinstance(part, TextTable) and part.header and isinstance(last, Paragraph) and last.text:
                self.parts.append(Paragraph(""))  # a table with headings stands apart
            self.parts.append(part)

    def without_notes(self) -> Page:
        """The results alone: what begins with an exclamation mark is a note beside them."""
        return Page(p for p in self.parts if not (isinstance(p, Paragraph) and p.text.startswith("! ")))

    def terminal(self, width: int | None = None, color: bool = False) -> str:
        """Text for a screen of that width, or as wide as it is; with ANSI's colours if the screen has them."""
        lines = (line for part in self.parts for line in part.lines(width))
        return "\n".join(_written(line, color) for line in lines).rstrip("\n") + "\n"

    def plain(self) -> str:
        """ASCII without lines, colours or wrapping; commands in the letters they have."""
        return "".join(part.plain() for part in self.parts).rstrip("\n").translate(_CONTROL) + "\n"

    def markdown(self) -> str:
        """Markdown as GitHub reads it: commands that follow each other are one block, and points one list."""
        text = "\n".join(filter(None, (part.markdown() for part in self.parts)))
        text = re.sub(r"(?<=\n)```\n\n```bash\n", "", text)
        return re.sub(r"(?m)^(- .*\n)\n(?=- )", r"\1", text).translate(_CONTROL)

    def html(self) -> str:
        """A piece of a page with its styles in it: nothing is loaded, nothing runs, and the page's own colours rule."""
        blocks: list[str] = []
        title, code = "", ""
        for part in [*self.parts, None]:  # commands that follow each other are one block, folded away under their title
            if isinstance(part, ShellCommand):
                code += f"{shell_lines(part.line)}\n"
                continue
            if code:
                blocks[-1 if title else len(blocks) :] = [_commands(code, title)]
            code = ""
            if part is not None:
                title = part.text if isinstance(part, Paragraph) and "bold" in part.pieces[0].style else ""
                blocks.append(part.html())
        inner = "".join(blocks).translate(_CONTROL)
        return f'<div style="line-height:1.45;max-width:90em">\n{inner}</div>\n'


def _commands(code: str, title: str) -> str:
    """Lines of a shell as HTML, to be copied."""
    block = f'<pre style="margin:2px 0;overflow-x:auto">{escape(code)}</pre>\n'
    if not title:
        return block
    return f'<details><summary style="font-weight:600;cursor:pointer">{escape(title)}</summary>\n{block}</details>\n'


def _written(line: Spans, color: bool) -> str:
    """A line of a terminal: no spaces at its end, no control characters but our own."""
    while line and not line[-1].text.rstrip():
        line = line[:-1]
    if line:
        line = [*line[:-1], line[-1]._replace(text=line[-1].text.rstrip())]
    pieces = []
    for text, style, *_ in line:
        clean = text.translate(_CONTROL).replace("\u00a0", " ")
        codes = ";".join(ANSI[word] for word in style.split() if word in ANSI) if color and clean.strip() else ""
        pieces.append(f"\x1b[{codes}m{clean}\x1b[0m" if codes else clean)
    return "".join(pieces)
