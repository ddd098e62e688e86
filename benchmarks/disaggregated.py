"""How the disaggregated servers of the silicon set were started: a row's pools, as options of `simulate`.

    started(rows)[rows[0]["run"]]        # {"pools": [{"role": "prefill", …}, …], …}, or why it is not known

A row says how many GPUs a worker has, and seldom how many workers there were or whether they drafted tokens. InferenceX
lists every run that it starts (``nvidia-master.yaml``: lengths, requests under way, workers and their layout), and the
file of NVIDIA's srt-slurm that each entry names has the engines' settings; ``data/disaggregated_recipes.csv`` has both.
A row is given the recipe that its lengths, load, layout, release and date leave. Where they leave several, the row has
none: which of them came nearest is not asked. AIConfigurator's own three rows stand for themselves.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from recipes import Row, engine, in_blocks

RECIPES = Path(__file__).resolve().parent / "data" / "disaggregated_recipes.csv"
LAYOUT = ("workers", "gpus", "ep", "dp")
COMPLETE = "inferencex-workers"  # rows with workers; the 67 of them that one recipe fits were all without drafts
Options = dict[str, Any]


def started(rows: Sequence[Row]) -> dict[str, Options | str]:
    """The options of every row's servers, or why they are not known."""
    recipes = _recipes()
    whole = {_run(row): row for row in rows if row["source"] == COMPLETE}
    fitting = {row["run"]: _fitting(row, whole.get(_run(row)), recipes) for row in rows}
    for group in _grouped(rows):
        _leave_one_recipe_to_each_run(group, fitting)
    answers: dict[str, Options | str] = {}
    for row in rows:
        left = fitting[row["run"]]
        if row["prefill_replicas"] and not left and row["source"] != COMPLETE:
            left = [_own_columns(row)]
        if len(left) == 1:
            answers[row["run"]] = _options(row, left[0])
        else:
            answers[row["run"]] = f"{len(left)} recipes fit" if left else "no recipe fits"
    return answers


def _recipes() -> list[dict[str, str]]:
    with RECIPES.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _run(row: Row) -> tuple[str, str]:
    """What tells a run: rows with the same latencies, to the last digit, are one run from two lists."""
    return row["ttft_s"], row["tpot_s"]


def _grouped(rows: Sequence[Row]) -> Iterator[dict[tuple[str, str], list[str]]]:
    """Rows that were measured on one day with one load, as runs, each with its ids."""
    columns = ("engine", "gpu", "precision", "input_len", "output_len", "max_concurrency", "date")
    groups: dict[tuple[str, ...], dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[tuple(row[column] for column in columns)][_run(row)].append(row["run"])
    yield from groups.values()


def _fitting(row: Row, whole: Row | None, recipes: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Recipes that a row may have been started with, one for each layout; of several dates the newest."""
    concurrency = str(_number(row, "max_concurrency"))
    left = [
        recipe
        for recipe in recipes
        if all(recipe[column] == row[column] for column in ("engine", "precision", "input_len", "output_len"))
        and recipe["gpu"] == row["gpu"].partition("-")[0]
        and recipe["model"] in row["model"]
        and concurrency in recipe["concurrency"].split("x")
        and (_has_layout(row, recipe) if whole is None else _is_complete(whole, recipe))
    ]
    release = row["engine_version"]
    left = [recipe for recipe in left if release and recipe["release"].startswith(release)] or left
    apart = {id(recipe): _days_apart(row["date"], recipe) for recipe in left}
    nearest = min(apart.values(), default=0)
    kept = sorted((recipe for recipe in left if apart[id(recipe)] == nearest), key=lambda recipe: recipe["since"])
    return list({_layout(recipe): recipe for recipe in kept}.values())


def _layout(recipe: Mapping[str, str]) -> tuple[str, ...]:
    return (recipe["draft"], *(recipe[f"{role}_{column}"] for role in ("prefill", "decode") for column in LAYOUT))


def _has_layout(row: Row, recipe: Mapping[str, str]) -> bool:
    """Whether a row without workers can be of a recipe.

    Rows of 2025 say all GPUs of a deployment, the same at both ends, or nothing (1); others say GPUs of a worker, and
    the experts' ranks of the prefill workers, if anything.
    """
    prefill, decode = _number(row, "prefill_tensor_parallel_size"), _number(row, "decode_tensor_parallel_size")
    if prefill == decode and (prefill == 1 or prefill > 16):
        total = sum(int(recipe[f"{role}_workers"]) * int(recipe[f"{role}_gpus"]) for role in ("prefill", "decode"))
        return prefill in (1, total)
    ranks = {int(recipe["prefill_ep"]), int(recipe["listed_prefill_ep"])}
    experts = row["prefill_expert_parallel_size"] == "?" or _number(row, "prefill_expert_parallel_size") in ranks
    return experts and (prefill, decode) == (int(recipe["prefill_gpus"]), int(recipe["decode_gpus"]))


def _is_complete(row: Row, recipe: Mapping[str, str]) -> bool:
    """Whether a row with workers is of a recipe. vLLM's attention ranks are not in its columns."""
    for role in ("prefill", "decode"):
        ranks = _number(row, f"{role}_data_parallel_size")
        gpus = ranks * _number(row, f"{role}_tensor_parallel_size")
        if (_number(row, f"{role}_replicas"), gpus) != (int(recipe[f"{role}_workers"]), int(recipe[f"{role}_gpus"])):
            return False
        listed = {int(recipe[f"{role}_dp"]) > 1, int(recipe.get(f"listed_{role}_dp") or recipe[f"{role}_dp"]) > 1}
        if row["engine"] != "vllm" and (ranks > 1) not in listed:
            return False
    return recipe["draft"] == "0"


def _days_apart(measured: str, recipe: Mapping[str, str]) -> int:
    """Days between a run and the time in which its recipe was listed; a run may be older than its entry."""
    day = date.fromisoformat(measured)
    return max((date.fromisoformat(recipe["since"]) - day).days, (day - date.fromisoformat(recipe["until"])).days, 0)


def _leave_one_recipe_to_each_run(
    runs: Mapping[tuple[str, str], list[str]], fitting: dict[str, list[dict[str, str]]]
) -> None:
    """What a run of the day is known to have been started with, another run of that day was not."""
    for ids in runs.values():
        common = set.intersection(*({_layout(recipe) for recipe in fitting[i]} for i in ids))
        for i in ids:
            fitting[i] = [recipe for recipe in fitting[i] if not common or _layout(recipe) in common]
    changed = True
    while changed:
        changed = False
        known = {_layout(fitting[ids[0]][0]): run for run, ids in runs.items() if len(fitting[ids[0]]) == 1}
        for run, ids in runs.items():
            for i in ids:
                left = [recipe for recipe in fitting[i] if known.get(_layout(recipe), run) == run]
                if left and len(left) < len(fitting[i]):
                    fitting[i], changed = left, True


def _own_columns(row: Row) -> dict[str, str]:
    """A recipe of the row's own columns."""
    recipe = {"draft": "0"}
    for role in ("prefill", "decode"):
        ranks = _number(row, f"{role}_data_parallel_size")
        recipe |= {
            f"{role}_workers": str(_number(row, f"{role}_replicas")),
            f"{role}_gpus": str(ranks * _number(row, f"{role}_tensor_parallel_size")),
            f"{role}_dp": str(ranks),
            f"{role}_ep": str(_number(row, f"{role}_expert_parallel_size") or 1),
        }
    return recipe


def _options(row: Row, recipe: Mapping[str, str]) -> Options:
    """What `simulate` is given for a recipe."""
    quantization = {"fp4": "nvfp4", "fp8": "fp8-block" if in_blocks(row["model"]) else "fp8"}[row["precision"]]
    if "gpt-oss" in row["model"]:
        quantization = "mxfp4"
    options: Options = {"frontend": "http", "engine": engine(row), "quantization": quantization}
    if recipe.get("kv_cache_dtype") or row["engine"] == "trtllm":
        options["kv_cache_dtype"] = "fp8"
    # Dynamo's front ends tokenize in Rust on all cores of a node, and there are up to ten of them
    options["api_server_count"] = 32
    if row["gpu"].startswith("gb"):
        options["host_profile"] = "grace"
    return {**options, "pools": [_pool(row, recipe, role) for role in ("prefill", "decode")]}


def _pool(row: Row, recipe: Mapping[str, str], role: str) -> Options:
    """The replicas of a role; a limit that the recipe leaves to the engine is left out."""
    gpus, ranks = int(recipe[f"{role}_gpus"]), int(recipe[f"{role}_dp"])
    pool: Options = {
        "role": role,
        "replicas": int(recipe[f"{role}_workers"]),
        "tensor_parallel_size": gpus // ranks,
        "data_parallel_size": ranks,
        "enable_expert_parallel": int(recipe[f"{role}_ep"]) > 1,
    }
    for column, name, kind in (
        ("seqs", "max_num_seqs", int),
        ("tokens", "max_num_batched_tokens", int),
        ("memory", "gpu_memory_utilization", float),
        ("graphs", "max_cudagraph_capture_size", int),
    ):
        given = recipe.get(f"{role}_{column}")
        if given and given != "0":
            pool[name] = kind(given)
    if role == "prefill" and row["engine"] == "trtllm":
        pool["async_scheduling"] = False  # disable_overlap_scheduler
    if role == "decode" and row["engine"] == "trtllm":  # all of them pad decode steps to graphs
        pool.setdefault("max_cudagraph_capture_size", pool.get("max_num_seqs", 128))
    drafts = int(recipe["draft"]) if role == "decode" else 0
    if "max_cudagraph_capture_size" in pool:
        pool["max_cudagraph_capture_size"] *= drafts + 1  # recipes count sequences, simulate tokens
    if drafts:
        pool["speculative_config"] = {"method": "mtp", "num_speculative_tokens": drafts}
    return pool


def _number(row: Row, column: str) -> int:
    return int(row[column] or 0)
