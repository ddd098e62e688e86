"""What is started for a plan, as plain data: processes with their arguments, environment and files; and as lines of a
shell, to be copied. There variables have defaults, so that a line runs as it stands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

import msgspec

VLLM, SGLANG, TRTLLM, BENCH = "vllm", "sglang", "trtllm", "bench"
SERVERS = (VLLM, SGLANG, TRTLLM)
PORT = 8000
SIDE_PORTS = 16  # between the side channels of two servers: a data-parallel rank has one each
_VARIABLE = re.compile(r"(\$\(\(.*?\)\)|\$[A-Z][A-Z0-9_]*)")


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A program with its arguments; `replicas` of it are started, each on `gpus` GPUs of `nodes` nodes.

    ``Process(name="server", engine="vllm", argv=["vllm", "serve", "$MODEL", "--port", "$PORT"], gpus=1)``

    What only the machine knows is a variable of the shell: ``$MODEL``, ``$PORT``, ``$HOST_IP`` (of this node),
    ``$HEAD_IP`` (of the replica's first node) and ``$NODE_RANK`` (0 on that one); for a router, ``$SERVER_0``,
    ``$PREFILL_0``, ``$DECODE_0`` … are the host:port of the first server of each pool, and so on.
    """

    name: str  # server, prefill, decode, router, bench
    engine: str  # vllm, sglang, trtllm
    argv: list[str]
    env: dict[str, str] = {}
    files: dict[str, str] = {}  # name -> text, in the folder that it is started in
    replicas: int = 1
    nodes: int = 1  # of one replica
    gpus: int = 0  # of one replica
    gpus_per_node: int = 0  # of one replica on each of its nodes
    port: int = PORT  # that the first node listens on
    headless_argv: list[str] | None = None  # what nodes after the first run; None: as the first; []: nothing
    comment: str = ""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """All that one engine needs to run a plan: ``launch.processes[0].argv  # ['vllm', 'serve', '$MODEL', …]``"""

    engine: str
    version: str = ""  # of the engine; "" = the newest that is known
    model: str  # what $MODEL is: a Hugging Face id or a path
    vendor: str = "NVIDIA"  # of the devices
    architecture: str = ""
    processes: list[Process]  # servers by pool, then the router
    bench: Process
    gpus_per_node: int = 8  # of a machine
    notes: list[str] = []  # what to do before
    refusals: list[str] = []  # why this engine cannot run the plan; then there are no processes


# ------------------------------------------------------------------ lines of a shell


def launch_lines(launch: Launch) -> list[str]:
    """Lines of a shell: ``launch_lines(launch)  # ['# 2 servers, 1 GPU each', 'vllm serve …']``"""
    if launch.refusals:
        return [f"# {reason}" for reason in launch.refusals]
    defaults, lines = variables(launch), [f"# {note}" for note in launch.notes]
    if sum(process.replicas for process in launch.processes if process.gpus) > 1:
        lines.append(
            "# on one machine, each server needs its own PORT and CUDA_VISIBLE_DEVICES; the scripts of -o DIR set them"
        )
    for process in launch.processes:
        port = first_port(launch, process)
        env = {name: side_port(name, value, port) for name, value in process.env.items()}
        lines += process_lines(msgspec.structs.replace(process, env=env), {**defaults, "PORT": str(port)})
    return lines


def variables(launch: Launch) -> dict[str, str]:
    """What the variables of a launch are unless they are set; what cannot be guessed is missing.

    ``variables(launch)["SERVER_0"]  # 'localhost:8001'``
    """
    backends = {
        f"{server.name.upper()}_{n}": f"localhost:{first_port(launch, server) + n}"
        for server in launch.processes
        for n in range(server.replicas)
        if server.gpus
    }
    return {"MODEL": launch.model, "PORT": str(PORT), "NODE_RANK": "0", "SEED": "$RANDOM", **backends}


def first_port(launch: Launch, process: Process) -> int:
    """Where the first server of a pool listens: 8000 where it is alone, else 8001 and on, behind the router."""
    servers = [one for one in launch.processes if one.gpus]
    if process not in servers or sum(one.replicas for one in servers) == 1:
        return PORT
    return PORT + 1 + sum(one.replicas for one in servers[: servers.index(process)])


def side_port(name: str, value: str, port: int) -> str:
    """A port in the environment, apart for servers on one machine: those of data-parallel ranks follow it.

    ``side_port("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600", 8003)  # '5632'``
    """
    return str(int(value) + SIDE_PORTS * (port - PORT - 1)) if value.isdigit() and name.endswith("_PORT") else value


def process_lines(process: Process, defaults: Mapping[str, str]) -> list[str]:
    """The comment, the files and the command of one process."""
    lines = [f"# {process.comment}"] if process.comment else []
    for name, text in process.files.items():
        content = " ".join(shell_word(line, defaults) for line in text.splitlines())
        lines.append(f"printf '%s\\n' {content} > {shlex.quote(name)}")
    lines.append(command_line(process.argv, defaults, process.env))
    if process.headless_argv:
        lines += ["# on the nodes after the first:", command_line(process.headless_argv, defaults, process.env)]
    return lines


def command_line(argv: list[str], defaults: Mapping[str, str], env: Mapping[str, str] | None = None) -> str:
    """One command; a value of the user's machine is a variable with a default, or one that must be set.

    ``command_line(["vllm", "serve", "$MODEL"], {"MODEL": "owner/model"})  # 'vllm serve owner/model'``
    """
    before = [f"{name}={shell_word(value, defaults)}" for name, value in (env or {}).items()]
    return " ".join([*before, *(shell_word(part, defaults) for part in argv)])


def shell_word(part: str, defaults: Mapping[str, str]) -> str:
    """One word of a command as a shell reads it: ``shell_word("$PORT", {"PORT": "8000"})  # '${PORT:-8000}'``"""
    if part == "$MODEL" and "MODEL" in defaults:
        return shlex.quote(defaults["MODEL"])
    pieces = _VARIABLE.split(part)  # texts, and between them variables
    if len(pieces) == 1:
        return shlex.quote(part)
    texts, names = pieces[::2], pieces[1::2]
    word = "".join(_escaped(text) + _expansion(name, defaults) for text, name in zip(texts, [*names, ""], strict=True))
    plain = "".join(texts)
    return word if (not plain or shlex.quote(plain) == plain) and "$PWD" not in names else f'"{word}"'


def _expansion(variable: str, defaults: Mapping[str, str]) -> str:
    """A variable with its default, or one that must be set; of arithmetic, the variable in it."""
    if variable.startswith("$(("):
        return variable.replace("NODE_RANK", f"${{NODE_RANK:-{defaults.get('NODE_RANK', '0')}}}")
    name = variable[1:]
    if name in ("", "PWD"):
        return variable
    return f"${{{name}:-{defaults[name]}}}" if name in defaults else f"${{{name}:?}}"


def _escaped(text: str) -> str:
    """Text between double quotes."""
    return re.sub(r'([\\"`$])', r"\\\1", text)
