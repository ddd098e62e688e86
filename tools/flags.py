"""Write docs/flags.md: every flag of every command by group, with its default, from the schema of arguments.

make schema            # after a field of the schema changed; a test compares
"""

from __future__ import annotations

from pathlib import Path

import click

from inferometer.cli.commands import COMMANDS, app
from inferometer.cli.options import COMMON, LAST, TrainableCommand, option_group
from inferometer.specs.arguments import flag

TARGET = Path(__file__).parent.parent / "docs" / "flags.md"
HEAD = """# Every flag

Written from the schema of arguments by `make schema`; the pages of the commands say more. In Python the same names are
keywords with underscores: `--batch-size 8` is `batch_size=8`.
"""


def text() -> str:
    """The whole page."""
    common = [f"| `{flag(name)}` | {more['help']} |" for name, more in COMMON.items()]
    parts = [HEAD, "\n".join(["", "| Common options | |", "|---|---|", *common, ""])]
    for name in COMMANDS:
        command = app.get_command(click.Context(app), name)
        assert command is not None
        parts.append(_section(name, command))
        if isinstance(command, TrainableCommand):
            parts.append(_section(f"{name} --train", command.training()))
    return "".join(parts)


def _section(name: str, command: click.Command) -> str:
    """The flags of a command, group by group."""
    parts = [f"\n## inferometer {name}\n\n{(command.help or '').splitlines()[0]}\n"]
    sections: dict[str, list[str]] = {}
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden and option.name not in COMMON:
            sections.setdefault(option_group(option), []).append(_row(option))
    for group, rows in sorted(sections.items(), key=lambda section: LAST.get(section[0], 0)):
        parts.append("\n".join(["", f"| {group} | |", "|---|---|", *rows, ""]))
    return "".join(parts)


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return f"| {names} | {(option.help or '').replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    print(f"wrote {TARGET}")
