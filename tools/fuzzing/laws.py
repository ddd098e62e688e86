"""What holds for every answer, each law with a name: no number is absurd, sums are sums, nothing is faster than light.

broken_laws("analyze", result, code=0)      # [] or ["memory-adds-up: 3 + 4 + 5 is not 13", …]

A law takes the JSON of a result and gives a sentence for each way in which it is broken. `LAWS` has those of each verb.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Result = Mapping[str, Any]
Law = Callable[[Result], Iterator[str]]
LAWS: dict[str, list[tuple[str, Law]]] = {}
CLOSE = 1e-6  # relative; sums of some thousand floats, and figures of seven digits

# What may be negative, by its path; [] is any item of a list, * any key. Everything else that is a number is not.
NEGATIVE = re.compile(
    r"""
      (runs\[\]\.)?errors\.\w+\.(bias|mean_error|pearson_r)    # signed on purpose: predicted against measured
    | (.+\.)?expected_error\.\w+\.bias                        # of runs that were measured
    | (runs\[\]\.)?figures\.\w+\.error
    | (runs\[\]\.)?diagnosis\.(errors|step_times)\.\w+
    | step_log\.classes\[\]\.bias
    | tried\[\]\.(ttft|tpot|output_throughput_per_gpu)        # what a change of a flag does
    | calibration\.request                                     # seconds that every request takes more, or less
    | memory\[\]\.error
    | server_command\.arguments\..+                         # as the command has them
    | graph\.\w+\.blocks\[\]\.(nodes\[\]\.id|edges\[\](\[\])?|edges\[\]\.\w+)  # the ends of a picture have no number
    | figures\..+\.(up|down)\.(change|elasticity)\.\w+         # what a tenth more of a figure does
    """,
    re.X,
)
_REPORTS = ("analyze", "cluster", "sweep", "simulate", "search", "sensitivity", "train", "validate", "explain")
INFINITE = 1e300  # no figure is as large as this; nan is not smaller either


def law(*verbs: str) -> Callable[[Law], Law]:
    """Register a law of some verbs; its name is the function's, with hyphens."""

    def register(function: Law) -> Law:
        for verb in verbs:
            LAWS.setdefault(verb, []).append((function.__name__.replace("_", "-"), function))
        return function

    return register


def broken_laws(verb: str, result: Result, code: int) -> list[str]:
    """``name: what is wrong`` for each law that a result breaks; of an infeasible one, too."""
    broken = [f"{name}: {text}" for name, check in LAWS.get(verb, []) for text in check(result)]
    return broken + [f"exit-code: {text}" for text in _exit_code(verb, result, code)]


def _differ(a: float, b: float, slack: float = CLOSE) -> bool:
    return not math.isclose(a, b, rel_tol=slack, abs_tol=1e-12)


def _exit_code(verb: str, result: Result, code: int) -> Iterator[str]:
    """0 is an answer that works, 1 one that does not, and the result says the same."""
    if verb.split()[0] in ("analyze", "train", "search", "sensitivity") and "feasible" in result:
        if bool(result["feasible"]) != (code == 0):
            yield f"{code} of a result that is {'' if result['feasible'] else 'in'}feasible"
        if verb in ("analyze", "train") and bool(result["feasible"]) == bool(result["reason"]):
            yield f"feasible is {result['feasible']} and the reason {result['reason']!r}"


# ------------------------------------------------------------------ every result


def _odd(value: Any) -> list[tuple[str, float]]:
    """Numbers that are negative, infinite or none, with their paths, which only these need: ``[(".ops[].id", -1)]``"""
    if isinstance(value, dict):
        return [(f".{key}{path}", number) for key, inner in value.items() for path, number in _odd(inner)]
    if isinstance(value, list | tuple):
        return [(f"[]{path}", number) for inner in value for path, number in _odd(inner)]
    return [("", value)] if isinstance(value, int | float) and not 0 <= value < INFINITE else []


@law(*_REPORTS, "search --train", "sweep --train", "sensitivity --train")
def numbers_are_numbers(result: Result) -> Iterator[str]:
    """Nothing is negative, infinite or not a number, but for what `NEGATIVE` lists."""
    for path, value in _odd(result):
        if not abs(value) < INFINITE or not NEGATIVE.fullmatch(path[1:]):
            yield f"{path[1:]} is {value:g}"


# ------------------------------------------------------------------ one plan


@law("analyze", "train")
def no_operator_beats_its_roofline(result: Result) -> Iterator[str]:
    """Of communication, what `overlap` does not hide; a share of 1e-12 has four digits left of 16."""
    seen = max(0.0, 1 - (result["plan"].get("overlap") or 0.0) - 1e-15)
    for name, phase in result["phases"].items():
        for op in phase["ops"]:
            if op["seconds"] < op["roofline_seconds"] * (seen if op["sent"] else 1.0) * (1 - CLOSE):
                yield f"{name}.{op['name']} takes {op['seconds']:.6g} s of {op['roofline_seconds']:.6g}"
            if not 0 <= op["efficiency"] <= 1 + CLOSE:
                yield f"{name}.{op['name']} is {op['efficiency']:g} efficient"


@law("analyze")
def no_phase_beats_its_roofline(result: Result) -> Iterator[str]:
    for key in ("ttft_ms", "tpot_ms"):
        ours, light = result["metrics"][key], result["roofline"][key]
        if ours is not None and light is not None and ours < light * (1 - CLOSE):
            yield f"{key} {ours:.6g} is below {light:.6g}"


@law("analyze", "train")
def phases_add_up(result: Result) -> Iterator[str]:
    for name, phase in result["phases"].items():
        ops = phase["ops"]
        if _differ(sum(op["seconds"] for op in ops), phase["seconds"]):
            yield f"{name}: operators take {sum(op['seconds'] for op in ops):.6g} s of {phase['seconds']:.6g}"
        if ops and phase["seconds"] and _differ(sum(op["share"] for op in ops), 1.0):
            yield f"{name}: shares are {sum(op['share'] for op in ops):.6g} together"
        flops = phase.get("OPs", phase.get("flops"))
        if flops is not None and _differ(sum(op["flops"] for op in ops), flops):
            yield f"{name}: operators do {sum(op['flops'] for op in ops):.6g} FLOP of {flops:.6g}"


@law("analyze")
def bytes_add_up(result: Result) -> Iterator[str]:
    parts = ("load_weight", "load_act", "store_act", "load_kv_cache", "store_kv_cache")
    for name, phase in result["phases"].items():
        if _differ(sum(phase[part] for part in parts), phase["memory_access"]):
            yield f"{name}: parts are {sum(phase[p] for p in parts):.6g} of {phase['memory_access']:.6g} bytes"
        if phase["inference_time"] != phase["seconds"]:
            yield f"{name}: {phase['inference_time']} s and {phase['seconds']} s"


@law("analyze", "train")
def memory_adds_up(result: Result) -> Iterator[str]:
    """Parts are the total; a plan fits where the total does, and nothing else of memory is a reason."""
    held = result["memory"]
    known = ("weights", "kv_cache", "activation", "overhead", "gradients", "optimizer", "working", "buffers")
    parts = [held[f"{part}_bytes"] for part in known if f"{part}_bytes" in held]
    if _differ(sum(parts), held["total_bytes"]):
        yield f"{' + '.join(f'{part:.6g}' for part in parts)} is not {held['total_bytes']:.6g}"
    if held["usable_bytes"] > held["capacity_bytes"] * (1 + CLOSE):
        yield f"{held['usable_bytes']:.6g} of {held['capacity_bytes']:.6g} bytes are usable"
    if result["feasible"] and held["total_bytes"] > held["usable_bytes"] * (1 + CLOSE):
        yield f"{held['total_bytes']:.6g} bytes fit into {held['usable_bytes']:.6g}"


@law("analyze")
def infeasible_for_a_reason(result: Result) -> Iterator[str]:
    why, held = result["infeasibility"], result["memory"]
    if (why is None) != result["feasible"]:
        yield f"feasible is {result['feasible']}, infeasibility {why!r}"
    elif why and why["kind"] == "memory" and held["total_bytes"] <= held["usable_bytes"]:
        yield f"memory is the reason, and {held['total_bytes']:.6g} is within {held['usable_bytes']:.6g}"


@law("analyze")
def latencies_add_up(result: Result) -> Iterator[str]:
    """E2E = TTFT + (answer - 1)·TPOT, for a plain batch; rates are tokens over time."""
    m, load = result["metrics"], result["workload"]
    if m["ttft_ms"] is None or m["e2el_ms"] is None or load["turns"]:
        return
    gaps = load["output_len"] - 1
    whole = m["ttft_ms"] + (gaps * m["tpot_ms"] if gaps and m["tpot_ms"] is not None else 0.0)
    if _differ(whole, m["e2el_ms"]):
        yield f"{m['ttft_ms']:.6g} + {gaps} · {m['tpot_ms']} is not {m['e2el_ms']:.6g} ms"
    if m["ttft_ms"] > m["e2el_ms"] * (1 + CLOSE):
        yield f"TTFT {m['ttft_ms']:.6g} is after the end, {m['e2el_ms']:.6g} ms"
    if m["output_throughput"] and _differ(
        m["output_throughput"], m["output_throughput_per_gpu"] * result["plan"]["gpus"]
    ):
        yield "output_throughput is not that of a GPU times GPUs"


# ------------------------------------------------------------------ requests


def _percentiles(result: Result) -> Iterator[str]:
    for name in ("ttft", "tpot", "itl", "e2el"):
        row = [result.get(f"{label}_{name}_ms") for label in ("median", "p90", "p99")]
        values = [value for value in row if value is not None]
        if any(low > high * (1 + 1e-9) + 1e-9 for low, high in itertools.pairwise(values)):
            yield f"{name}: {values}"


@law("simulate", "validate")
def percentiles_are_ordered(result: Result) -> Iterator[str]:
    for run in result.get("runs") or [result]:
        yield from _percentiles(run)


@law("simulate", "validate")
def requests_are_conserved(result: Result) -> Iterator[str]:
    """Requests in are requests done, rejected or failed; what is answered has its tokens."""
    for run in result.get("runs") or [result]:
        if "completed" not in run or "num_prompts" not in run:
            continue
        if run["completed"] + run["failed"] + run["rejected"] != run["num_prompts"]:
            yield f"{run['completed']} + {run['failed']} + {run['rejected']} of {run['num_prompts']} requests"
        if not run["completed"] and run["total_output_tokens"]:
            yield f"{run['total_output_tokens']} tokens of no request"
        if run["duration"] and run["request_throughput"] is not None:
            if _differ(run["request_throughput"] * run["duration"], run["completed"]):
                yield f"{run['request_throughput']:.6g}/s for {run['duration']:.6g} s is not {run['completed']}"
            if _differ(run["output_throughput"] * run["duration"], run["total_output_tokens"]):
                yield f"{run['output_throughput']:.6g} tok/s are not {run['total_output_tokens']} tokens"


@law("simulate", "validate")
def first_tokens_come_before_the_last(result: Result) -> Iterator[str]:
    for run in result.get("runs") or [result]:
        for label in ("mean", "median", "p90", "p99"):
            first, last = run.get(f"{label}_ttft_ms"), run.get(f"{label}_e2el_ms")
            if first is not None and last is not None and first > last * (1 + 1e-9) + 1e-6:
                yield f"{label}: TTFT {first:.6g}, E2E {last:.6g} ms"


@law("simulate")
def caches_hold_what_they_hold(result: Result) -> Iterator[str]:
    for key in ("max_kv_cache_usage", "prefix_cache_hit_rate"):
        value = result.get(key)
        if value is not None and value > 1 + 1e-9:
            yield f"{key} is {value:.6g}"


@law("validate")
def errors_are_of_all_rows(result: Result) -> Iterator[str]:
    for run in result.get("runs") or [result]:
        for metric, error in (run.get("errors") or {}).items():
            if error["requests"] > run["num_prompts"]:
                yield f"{metric}: {error['requests']} errors of {run['num_prompts']} requests"
            if error["requests"] and any(error[key] is None for key in ("mape", "median_ape", "max_ape", "bias")):
                yield f"{metric}: an error of {error['requests']} requests is missing"
            if error["requests"] and not error["median_ape"] <= error["max_ape"] * (1 + CLOSE) + CLOSE:
                yield f"{metric}: the median error {error['median_ape']:g} is above the largest, {error['max_ape']:g}"


def requests_file(result: Result, rows: list[dict[str, str]]) -> Iterator[str]:
    """Law `requests-file`: the rows of --requests-out are the requests of the result, and their tokens its tokens."""
    if len(rows) != result["num_prompts"]:
        yield f"{len(rows)} rows of {result['num_prompts']} requests"
    done = [row for row in rows if row.get("E2E")]
    if len(done) != result["completed"]:
        yield f"{len(done)} rows have an end, {result['completed']} requests are done"
    if sum(int(row["output_tokens"]) for row in done) != result["total_output_tokens"]:
        yield f"{sum(int(row['output_tokens']) for row in done)} tokens in rows, {result['total_output_tokens']} in all"
    for row in done:
        if row.get("TTFT") and float(row["TTFT"]) > float(row["E2E"]) * (1 + 1e-6) + 1e-3:
            yield f"TTFT {row['TTFT']} is after E2E {row['E2E']}"


# ------------------------------------------------------------------ search


_BETTER: dict[str, Callable[[Result], float]] = {  # of an objective: smaller is better
    "throughput": lambda m: -m["output_throughput_per_gpu"],
    "cost": lambda m: m["cost_per_million_output_tokens"],
    "latency": lambda m: m["e2el_ms"],
    "energy": lambda m: m["joules_per_output_token"],
}


@law("search")
def the_winner_is_a_plan(result: Result) -> Iterator[str]:
    winner, plans = result["winner"], result["plans"]
    if result["feasible"] != (winner is not None):
        yield f"feasible is {result['feasible']}, the winner {'there' if winner else 'missing'}"
    if winner is not None and winner not in plans:
        yield "the winner is not among the plans"
    for plan in plans:
        if result["num_gpus"] is not None and plan["gpus"] + plan["idle_gpus"] > result["num_gpus"]:
            yield f"{plan['gpus']} + {plan['idle_gpus']} GPUs of {result['num_gpus']}"


@law("search")
def no_plan_that_holds_is_better(result: Result) -> Iterator[str]:
    """Of plans that were simulated and hold, none is better by the objective (1%: what a search calls equal)."""
    winner = result["winner"]
    if not winner or not winner.get("simulated"):
        return
    value = _BETTER[result["objective"]]
    if winner["trial"] and not winner["trial"]["holds"]:
        yield "the winner does not hold"
    for plan in result["plans"]:
        if not plan.get("simulated") or not plan.get("trial") or not plan["trial"]["holds"]:
            continue
        ours, other = value(winner["simulated"]), value(plan["simulated"])
        if ours is not None and other is not None and other < ours - 0.0101 * abs(ours):
            yield f"{result['objective']}: {ours:.6g} wins, {other:.6g} holds too"


@law("search --train")
def the_layout_is_the_fastest(result: Result) -> Iterator[str]:
    """The winner is the first of its plans, which are ordered by the seconds of a step, and uses no other GPUs."""
    winner, plans = result["winner"], result["plans"]
    if result["feasible"] != (winner is not None) or result["feasible"] == bool(result["reason"]):
        yield f"feasible is {result['feasible']}, the reason {result['reason']!r}"
    if winner is None:
        return
    if winner["label"] != plans[0]["label"]:
        yield f"{winner['label']} wins, {plans[0]['label']} is first"
    for a, b in itertools.pairwise(plans):
        if a["step_seconds"] > b["step_seconds"] * (1 + CLOSE):
            yield f"{a['label']} takes {a['step_seconds']:.6g} s and stands before {b['step_seconds']:.6g}"
    for plan in plans:
        names = ("tensor", "pipeline", "data", "context")
        gpus = math.prod(plan["arguments"].get(f"{name}_parallel_size", 1) for name in names)
        if gpus != result["num_gpus"]:
            yield f"{plan['label']} has {gpus} of {result['num_gpus']} GPUs"
        if _differ(plan["tokens_per_second_per_gpu"] * gpus, plan["tokens_per_second"]):
            yield f"{plan['label']}: tokens_per_second is not that of a GPU times GPUs"
        if plan["model_flops_utilization"] > 1 + CLOSE:
            yield f"{plan['label']}: MFU is {plan['model_flops_utilization']:.6g}"


# ------------------------------------------------------------------ train


@law("train")
def steps_are_possible(result: Result) -> Iterator[str]:
    step = result["step_seconds"]
    if step < result["roofline_step_seconds"] * (1 - CLOSE):
        yield f"a step of {step:.6g} s is below its roofline, {result['roofline_step_seconds']:.6g}"
    for key in ("model_flops_utilization", "hardware_flops_utilization"):
        if result[key] > 1 + CLOSE:
            yield f"{key} is {result[key]:.6g}"
    if result["model_flops"] > result["hardware_flops"] * (1 + CLOSE):
        yield f"{result['model_flops']:.6g} FLOP of the model, {result['hardware_flops']:.6g} computed"
    if _differ(sum(result["breakdown"].values()), step):
        yield f"the parts take {sum(result['breakdown'].values()):.6g} of {step:.6g} s"
    if _differ(result["tokens_per_second"] * step, result["tokens_per_step"]):
        yield f"{result['tokens_per_second']:.6g} tok/s are not {result['tokens_per_step']} a step"


# ------------------------------------------------------------------ sweep


def row_is_analysis(row: Result, report: Result) -> Iterator[str]:
    """Law `row-is-analysis`: a row of a sweep is what analyze says of that plan, to the digits that it has."""
    if row["feasible"] != report["feasible"]:
        yield f"feasible is {row['feasible']} in the sweep and {report['feasible']} alone"
    for key, value in report["metrics"].items():
        if key in row and row["feasible"] and (row[key] is None) != (value is None):
            yield f"{key} is {row[key]} in the sweep and {value} alone"
        elif key in row and row[key] is not None and value is not None and _differ(row[key], value, 2e-6):
            yield f"{key} is {row[key]:.8g} in the sweep and {value:.8g} alone"


@law("simulate")
def sessions_are_conserved(result: Result) -> Iterator[str]:
    """Sessions that ended are of those that began, and the time of a model is within that of a session."""
    told = result.get("sessions")
    if not told:
        return
    if told["completed"] > told["sessions"]:
        yield f"{told['completed']} of {told['sessions']} sessions are complete"
    if told["completed"] and told["mean_model_s"] > told["mean_duration_s"] * (1 + CLOSE):
        yield f"the model takes {told['mean_model_s']:.6g} s of {told['mean_duration_s']:.6g}"
    if (told["cached_share"] or 0) > 1 + CLOSE:
        yield f"a share of {told['cached_share']:g} is cached"


@law("simulate")
def tiers_hold_what_they_hold(result: Result) -> Iterator[str]:
    for tier in result.get("kv_tiers") or ():
        if tier["capacity_bytes"] is not None and tier["used_bytes"] > tier["capacity_bytes"] * (1 + CLOSE):
            yield f"{tier['name']} holds {tier['used_bytes']:.6g} of {tier['capacity_bytes']:.6g} bytes"
        if tier["hit_rate"] is not None and tier["hit_rate"] > 1 + CLOSE:
            yield f"{tier['name']}: a hit rate of {tier['hit_rate']:g}"


@law("sweep")
def rows_are_the_grid(result: Result) -> Iterator[str]:
    if "rows" not in result:
        return
    points = math.prod(len(values) for values in result["axes"].values())
    if not len(result["rows"]) == result["points"] == points:
        yield f"{len(result['rows'])} rows, {result['points']} points, {points} combinations"
    if sum(1 for row in result["rows"] if row["feasible"]) != result["feasible"]:
        yield f"{result['feasible']} are feasible by the count, not by the rows"
    for row in result["rows"]:
        if bool(row["feasible"]) == bool(row["reason"]):
            yield f"feasible is {row['feasible']} and the reason {row['reason']!r}"


# ------------------------------------------------------------------ two results


def never_slower(base: Result, better: Result) -> Iterator[str]:
    """Law `never-slower`: with more memory bandwidth, nothing of a plan takes longer."""
    for key in ("ttft_ms", "tpot_ms", "e2el_ms"):
        was, now = base["metrics"][key], better["metrics"][key]
        if was is not None and now is not None and now > was * (1 + CLOSE):
            yield f"{key} {was:.8g} became {now:.8g}"
