"""Processes as lines of a shell, to be copied."""

from __future__ import annotations

import re
import shlex

from .processes import Launch, Process

_VARIABLE = re.compile(r"\$(\(\(|[A-Z])")


def launch_lines(launch: Launch) -> list[str]:
    """Lines of a shell: ``launch_lines(launch)  # ['# 2 × this, each on 1 GPU: serves', 'vllm serve …']``"""
    if launch.refusals:
        return [f"# {reason}" for reason in launch.refusals]
    lines = [line for process in launch.processes for line in process_lines(process)]
    return [*(f"# {note}" for note in launch.notes), *lines]


def process_lines(process: Process) -> list[str]:
    """The comment, the files and the command of one process."""
    lines = [f"# {process.comment}"] if process.comment else []
    for name, text in process.files.items():
        content = " ".join(f'"{line}"' if _VARIABLE.search(line) else shlex.quote(line) for line in text.splitlines())
        lines.append(f"printf '%s\\n' {content} > {shlex.quote(name)}")
    lines.append(command_line(process.argv, process.env))
    return [*lines, "# nodes after the first: add --headless"] if process.headless_argv else lines


def command_line(argv: list[str], env: dict[str, str] | None = None) -> str:
    """One command; what stands for a value of the user's machine keeps its dollar.

    ``command_line(["vllm", "serve", "owner/model", "--port", "$PORT"])  # 'vllm serve owner/model --port $PORT'``
    """
    before = [f"{name}={_quoted(value)}" for name, value in (env or {}).items()]
    return " ".join([*before, *map(_quoted, argv)])


def _quoted(part: str) -> str:
    return part if _VARIABLE.search(part) else shlex.quote(part)
