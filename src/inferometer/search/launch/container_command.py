"""A process as the command of a container: the shell's variables become those of Compose or Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .processes import Process

FILES = "/config"  # where a container finds the files of its process
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
_RANKS = re.compile(r"\$\(\(NODE_RANK \* (\d+)\)\)")  # the first rank of a node, of so many on each


class ContainerCommand(NamedTuple):
    """``exec "$0" "$@" …`` of a shell, and the arguments that it gets; without a shell, the arguments alone."""

    argv: list[str]
    script: str = ""

    @property
    def entrypoint(self) -> list[str]:
        """What comes before the arguments: ``['sh', '-c', 'exec "$0" "$@" $EXTRA_ARGS']``"""
        return ["sh", "-c", self.script] if self.script else []


def container_command(
    process: Process,
    argv: list[str],
    variables: Mapping[str, str],
    *,
    extra: bool = False,
    exports: Mapping[str, str] | None = None,
) -> ContainerCommand:
    """Arguments with their variables filled in: ``container_command(server, server.argv, {"PORT": "8000"}).argv``

    What takes arithmetic (a rank of each node) is left to a shell, with the flag before it; so are ``exports``, whose
    values are the shell's own, and EXTRA_ARGS, which is split at blanks.
    """
    names = {name: f"{FILES}/{name}" for name in process.files}
    known = {**variables, "PWD": FILES}
    parts: list[str] = []
    computed: list[str] = []
    for part in argv:
        if _RANKS.search(part) and not variables["NODE_RANK"].isdigit():
            variable = variables["NODE_RANK"].strip("$()")
            computed += [parts.pop(), part.replace("NODE_RANK", variable)]
        else:
            product = _RANKS.sub(lambda match: str(int(variables["NODE_RANK"]) * int(match[1])), part)
            parts.append(names.get(part, filled(product, known)))
    shell = [*computed, *(["$EXTRA_ARGS"] if extra else [])]
    before = "".join(f"export {name}={value}; " for name, value in (exports or {}).items())
    script = before + " ".join(['exec "$0" "$@"', *shell])
    return ContainerCommand(parts, script if shell or exports else "")


def filled(text: str, variables: Mapping[str, str]) -> str:
    """Text with its variables filled in; all of them have a value: ``filled("$A:1", {"A": "x"})  # 'x:1'``"""
    return _VARIABLE.sub(lambda match: variables[match[1] or match[2]], text)
