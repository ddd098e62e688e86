"""A result as a folder: scripts of bash for every engine, its manifests, the benchmark, and what to run in which order.

In scripts every value of the machine is a variable of the environment with a default. ``REPLICA=1 ./serve.sh`` starts
the second of several servers of one machine: its port and its GPUs follow.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from ...specs import catalog
from ..search_result import Search
from . import manifests
from .bench_command import BASE_URL, REQUESTS
from .processes import PORT, SIDE_PORTS, Launch, Process, first_port, side_port, variables

MARK = "Written by inferometer search"
SCRIPTS = {"server": "serve.sh", "prefill": "prefill.sh", "decode": "decode.sh", "router": "router.sh"}
_VARIABLE = re.compile(r"(\$\(\(.*?\)\)|\$[A-Z][A-Z0-9_]*)")


def folder_files(result: Search, result_json: str, requests: Iterable[str] | None = None) -> dict[str, str]:
    """Texts by path: ``folder_files(result, text)["vllm/serve.sh"]``; ``requests``: lines of the benchmark's file."""
    possible = {engine: launch for engine, launch in result.launches.items() if not launch.refusals}
    files: dict[str, str] = {}
    for engine, launch in possible.items():
        scripts = script_files(launch) | manifests.files(launch)
        files |= {f"{engine}/{name}": text for name, text in scripts.items()}
    first = possible.get(result.engine) or next(iter(possible.values()), None)
    if first is not None:
        files["bench.sh"] = bench_script(first)
    if first is not None and requests is not None:
        files[REQUESTS] = "".join(f"{line}\n" for line in requests)
    files["search.json"] = result_json
    return {"README.md": _readme(result, possible, first, [*files]), **files}


def _readme(result: Search, possible: dict[str, Launch], first: Launch | None, paths: list[str]) -> str:
    """What to run, in order; all files, so that a later search knows which are its own."""
    winner = result.winner
    lines = [f"<!-- {MARK} -->", f"# {result.model}: {winner.label if winner is not None else 'no plan'}", ""]
    lines += [f"{sentence}" for sentence in result.why] + [""]
    lines += _steps(first) if first is not None else []
    for engine, launch in result.launches.items():
        if launch.refusals:
            lines += [f"Not for {catalog.engine(engine).label}: {'; '.join(launch.refusals)}.", ""]
    others = [f"`{engine}/`" for engine in possible if first is not None and engine != first.engine]
    if others:
        lines += [f"The same plan for other engines: {', '.join(others)}.", ""]
    containers = dict.fromkeys(path.split("/")[1] for path in paths if path.endswith(".yaml"))
    named = [name for name in ("compose.yaml", "kubernetes", "dynamo", "llm-d") if name in containers]
    if named:
        listed = ", ".join(f"`{name}`" for name in named)
        lines += [
            f"In containers, all at once: {listed} of an engine; its first lines say how to start it.",
            "",
        ]
    lines += ["Files:", *(f"- `{path}`" for path in paths)]
    return "\n".join(lines) + "\n"


def _steps(launch: Launch) -> list[str]:
    """The order in which the scripts of one engine are run."""
    label, steps = catalog.engine(launch.engine).label, [*launch.notes]
    for process in launch.processes:
        script, many = f"`{launch.engine}/{SCRIPTS[process.name]}`", process.replicas
        if not process.gpus:
            steps.append(f"{script}, once all servers are up; it listens on port {process.port}")
            continue
        where = f"on each of its {process.nodes} nodes, with NODE_RANK and HEAD_IP" if process.nodes > 1 else ""
        times = f"{many} times, with REPLICA=0 to {many - 1}" if many > 1 else "once"
        gpus = f"{process.gpus} GPU{'s' if process.gpus > 1 else ''} each"
        steps.append(" ".join(piece for piece in (f"{script}: {times},", gpus, where) if piece))
    steps.append("`bench.sh` measures it; compare the result with the figures above")
    numbered = [f"{number}. {step}" for number, step in enumerate(steps, 1)]
    return [f"With {label} {launch.version} (the plan relies on its defaults), in this order:", "", *numbered, ""]


# ------------------------------------------------------------------ scripts


def script_files(launch: Launch) -> dict[str, str]:
    """The scripts of a launch and the files that they need, by name: ``script_files(launch)["serve.sh"]``"""
    files: dict[str, str] = {}
    for process in launch.processes:
        files[SCRIPTS[process.name]] = _script(launch, process)
        files |= {name: text for name, text in process.files.items() if not _VARIABLE.search(text)}
    return files


SEED = 'SEED="${SEED:-$RANDOM}"'


def bench_script(launch: Launch) -> str:
    """``bench.sh``: the benchmark, wherever the server or the router listens."""
    argv = [part.replace(BASE_URL, "$BASE_URL") for part in launch.bench.argv]
    command = _exec(argv, {REQUESTS: "$HERE/" + REQUESTS})
    return _text(launch.bench, [_default("MODEL", launch.model), _default("BASE_URL", BASE_URL), SEED, "", *command])


def _script(launch: Launch, process: Process) -> str:
    """One process: its variables, what depends on the replica, its files, the command."""
    paths = {name: f"$HERE/{name}" for name in process.files}
    if process.gpus:
        lines = [_default("MODEL", launch.model), *_of_replica(launch, process)]
    else:
        names = _names([*process.argv, *process.files.values()])
        lines = [_default(name, value) for name, value in variables(launch).items() if name in names]
    if process.nodes > 1:
        lines.append(_default("NODE_RANK", "0"))
    if "$HEAD_IP" in " ".join(process.argv):
        lines.append('HEAD_IP="${HEAD_IP:?the address of the first node}"')
    lines += _environment(launch, process)
    for name, text in process.files.items():
        if _VARIABLE.search(text):
            lines += [f'cat > "$HERE/{name}" <<EOF', text.rstrip("\n"), "EOF"]
    if process.headless_argv:
        lines += ['if [ "$NODE_RANK" -gt 0 ]; then', *_exec(process.headless_argv, paths, "  "), "fi"]
    elif process.headless_argv is not None:
        lines += [
            'if [ "$NODE_RANK" -gt 0 ]; then',
            "  echo 'mpirun on the first node starts this node' && exit 0",
            "fi",
        ]
    return _text(process, [*lines, "", *_exec(process.argv, paths)])


def _text(process: Process, body: list[str]) -> str:
    """A script of some lines, which know the folder that it lies in."""
    comment = [f"# {process.comment}"] if process.comment else []
    head = ["#!/usr/bin/env bash", f"# {MARK}. EXTRA_ARGS are added to the command.", *comment, "set -euo pipefail"]
    here = ['HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"'] if any("$HERE" in line for line in body) else []
    return "\n".join([*head, *here, *body]) + "\n"


def _of_replica(launch: Launch, process: Process) -> list[str]:
    """Port and GPUs of one of several servers."""
    servers = [one for one in launch.processes if one.gpus]
    if len(servers) == 1 and process.replicas == 1:
        return [_default("PORT", str(PORT))]
    lines = [f'REPLICA="${{REPLICA:-0}}"  # 0 to {process.replicas - 1}: which replica this is']
    lines.append(f'PORT="${{PORT:-$(({first_port(launch, process)} + REPLICA))}}"')
    if process.nodes > 1 or process.gpus >= launch.gpus_per_node:
        return lines
    gpus, begins = process.gpus, _first_gpus(servers, launch.gpus_per_node)[process.name]
    lines += [f"first_gpus=({' '.join(map(str, begins))})", 'GPU="${first_gpus[$REPLICA]}"']
    listed = f'$(seq -s, "$GPU" "$((GPU + {gpus - 1}))")' if gpus > 1 else "$GPU"
    return [*lines, f'export CUDA_VISIBLE_DEVICES="${{CUDA_VISIBLE_DEVICES:-{listed}}}"']


def _first_gpus(servers: list[Process], gpus_per_node: int) -> dict[str, list[int]]:
    """The first GPU of every replica, node after node; a server that does not fit beside the others has a fresh one."""
    places: dict[str, list[int]] = {server.name: [] for server in servers}
    used = 0
    for server in servers:
        for _ in range(server.replicas):
            begin = used if used + server.gpus <= gpus_per_node else 0
            places[server.name].append(begin)
            used = begin + min(server.gpus, gpus_per_node)
    return places


def _environment(launch: Launch, process: Process) -> list[str]:
    """Variables of the process; a port is another one for every server of a machine."""
    lines = []
    for name, value in process.env.items():
        if value == "$HOST_IP":
            lines.append("HOST_IP=\"${HOST_IP:-$(hostname -I | cut -d' ' -f1)}\"  # of this node")
        own = side_port(name, value, first_port(launch, process))
        own = f"$(({own} + {SIDE_PORTS} * REPLICA))" if own.isdigit() and name.endswith("_PORT") else value
        lines.append(f'export {name}="${{{name}:-{own}}}"')
    return lines


def _exec(argv: list[str], paths: Mapping[str, str], indent: str = "") -> list[str]:
    """The command, a flag with its values on each line."""
    lines: list[list[str]] = []
    for part in argv:
        place = _word(paths.get(part, part.replace("$PWD/", "$HERE/")))
        if not lines or (part.startswith("-") and len(lines[-1]) > (2 if len(lines) == 1 else 0)):
            lines.append([])
        lines[-1].append(place)
    text = f" \\\n{indent}  ".join([*(" ".join(line) for line in lines), "${EXTRA_ARGS:-}"])
    return [f"{indent}# shellcheck disable=SC2086", f"{indent}exec {text}"]


def _word(part: str) -> str:
    """A word of a script, where all variables are set: ``_word("http://$SERVER_0")  # '"http://$SERVER_0"'``"""
    pieces = _VARIABLE.split(part)
    if len(pieces) == 1:
        return shlex.quote(part)
    return '"{}"'.format("".join(p if n % 2 else re.sub(r'([\\"`$])', r"\\\1", p) for n, p in enumerate(pieces)))


def _default(name: str, value: str) -> str:
    """``_default("PORT", "8000")  # 'PORT="${PORT:-8000}"'``"""
    escaped = re.sub(r'([\\"`$}])', r"\\\1", value)
    return f'{name}="${{{name}:-{escaped}}}"'


def _names(texts: Iterable[str]) -> set[str]:
    return {match[1:] for text in texts for match in _VARIABLE.findall(text)}
