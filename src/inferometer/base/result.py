"""A result that shows itself: in a notebook, in a terminal, as a table of pandas, as a picture.

report = inferometer.analyze("llama-3.1-8b", gpu="h200")
report                              # the last line of a notebook's cell: a page with tables and bars
report.to_pandas()                  # operators as rows
report.plot("roofline")             # a figure of matplotlib

What a result is and how it looks are floors apart: `views.results` draws, and no result imports it. The package's
root, which knows every floor, loads it when the first result is looked at.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # that of `typing`, which the package's root shall not load
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any, Self, TypeVar

    Kept = TypeVar("Kept")


def views() -> Any:
    """The module that draws results, which the package's root loads."""
    return sys.modules[__package__.partition(".")[0]]._views()


def keep(result: Kept, **objects: Any) -> Kept:
    """Keep with a result what draws and explains it: no field of it, not in its JSON, lost when it is pickled."""
    result.__dict__.update({f"_{name}": value for name, value in objects.items()})
    return result


def kept(result: Any, name: str) -> Any:
    """What was kept with a result under a name, or None: ``kept(report, "request")``"""
    return result.__dict__.get(f"_{name}")


class Result:
    """What every result can do; a struct that has it needs ``dict=True`` for what is kept with it."""

    __slots__ = ()

    def to_text(self, width: int | None = None) -> str:
        """What the command line prints, so many columns wide: ``print(report.to_text(100))``"""
        text: str = views().page(self).terminal(width)
        return text

    def to_markdown(self) -> str:
        """The same in Markdown, with GitHub's tables: ``Path("report.md").write_text(report.to_markdown())``"""
        text: str = views().page(self).markdown()
        return text

    def to_html(self) -> str:
        """The same as a piece of HTML with its styles in it, as a notebook shows it."""
        text: str = views().html(self)
        return text

    def to_pandas(self, table: str = "") -> Any:
        """A `pandas.DataFrame`; without a name, the first table there is: ``report.to_pandas("metrics")``"""
        return views().frame(self, table)

    def plot(self, kind: str = "", path: str | Path | None = None) -> Any:
        """A matplotlib figure, which a notebook shows; with ``path``, also written: ``report.plot(path="roof.svg")``"""
        return views().figure(self, kind, path)

    def _repr_html_(self) -> str:
        return self.to_html()

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        yield Text.from_ansi(views().page(self).terminal(options.max_width, color=True), no_wrap=True, end="")


class ComparableResult(Result):
    """A result that can be held against another of its kind."""

    __slots__ = ()

    def compare(self, other: Self) -> Any:
        """What changes from this result to the other, metric by metric, and why: ``bf16.compare(fp8)``"""
        return views().compare(self, other)
