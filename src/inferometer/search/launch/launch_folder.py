"""A result as a folder: scripts of every engine, the benchmark, the result itself, and what to run in which order."""

from __future__ import annotations

from collections.abc import Iterable

from ...specs import catalog
from ..search_result import Search
from .bench_command import REQUESTS
from .processes import Launch
from .scripts import MARK, SCRIPTS, bench_script, script_files


def folder_files(result: Search, result_json: str, requests: Iterable[str] | None = None) -> dict[str, str]:
    """Texts by path: ``folder_files(result, text)["vllm/serve.sh"]``; ``requests``: lines of the benchmark's file."""
    possible = {engine: launch for engine, launch in result.launches.items() if not launch.refusals}
    files: dict[str, str] = {}
    for engine, launch in possible.items():
        scripts = script_files(launch)
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
    lines += ["Files:", *(f"- `{path}`" for path in paths)]
    return "\n".join(lines) + "\n"


def _steps(launch: Launch) -> list[str]:
    """The order in which the scripts of one engine are run."""
    label, steps = catalog.engine(launch.engine).label, [*launch.notes]
    for process in launch.processes:
        script, many = f"`{launch.engine}/{SCRIPTS[process.name]}`", process.replicas
        if not process.gpus:
            steps.append(f"{script}, when all servers answer: it listens on port {process.port}")
            continue
        where = f"on each of its {process.nodes} nodes, with NODE_RANK and HEAD_IP" if process.nodes > 1 else ""
        times = f"{many} times, with REPLICA=0 to {many - 1}" if many > 1 else "once"
        gpus = f"{process.gpus} GPU{'s' if process.gpus > 1 else ''} each"
        steps.append(" ".join(piece for piece in (f"{script}: {times},", gpus, where) if piece))
    steps.append("`bench.sh` measures it: compare its figures with those above")
    numbered = [f"{number}. {step}" for number, step in enumerate(steps, 1)]
    return [f"With {label}, in this order:", "", *numbered, ""]
