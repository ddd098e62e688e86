"""Why the winner won, by how much, and why the others did not: sentences made of the metrics that were compared."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ..base.units import milliseconds, percent, plural, seconds, si
from ..inference.analyze import provenance_warnings
from ..inference.breakdown import phase_tables
from ..inference.workload import batch_shape_of
from ..network.graph import Model
from ..serving.metrics import LABELS
from ..specs.plan_args import short_flag
from ..specs.structs import Workload
from .finalists import Finalist
from .plan_table import PlanTable, Status, latencies
from .search_result import Candidate, PlanMetrics, PoolSpec, SimulationResult
from .space import RejectedServer

NAMED = 3  # plans that tie with the winner
SHOWN, FEW = 5, 2  # rejected plans that are named, of each kind; those that look worse than the winner
UNITS = {
    "throughput": "output tokens/s per GPU",
    "cost": "USD per million output tokens",
    "latency": "end to end",
    "energy": "J per output token",
}
METRIC_OF = {  # the metric of an objective
    "throughput": "output_throughput_per_gpu",
    "cost": "cost_per_million_output_tokens",
    "latency": "e2el_ms",
    "energy": "joules_per_output_token",
}


def to_candidate(table: PlanTable, finalist: Finalist, winner: Finalist | None) -> Candidate:
    """A simulated plan with the metrics of its final simulation and its verdict."""
    candidate = table.candidate(finalist.row)
    candidate.simulations = finalist.simulations
    candidate.trial = finalist.final
    if finalist.final is not None:
        candidate.simulated = table.simulated_metrics(finalist.row, finalist.final)
    candidate.bound = finalist.bound if table.compares_rates else ""
    if finalist.holds:
        tied = winner is not None and ties(table, finalist, winner)
        candidate.verdict = "wins" if winner is finalist else "ties" if tied else "holds"
        return candidate
    candidate.missed = missed_limits(table, finalist)
    beaten = winner is not None and table.compares_rates and not finalist.reason
    candidate.verdict = "beaten" if beaten else "fails"
    candidate.reason = finalist.reason or failure_reason(table, finalist)
    return candidate


def ties(table: PlanTable, finalist: Finalist, winner: Finalist) -> bool:
    """Whether a plan that holds is nearer to the winner than predictions are to what is measured."""
    less, more = sorted((abs(finalist.value), abs(winner.value)))
    return 1 - less / more <= table.prediction_error(winner.row) + 1e-9 if more else True


def failure_reason(table: PlanTable, finalist: Finalist) -> str:
    """Why a plan did not hold in the simulation."""
    result, objective = finalist.final, table.problem.objective
    if result is None:
        return "no simulation could be run"
    rate = f"at {result.request_rate:.4g} requests/s"
    if result.good >= objective.goodput_share:
        most = f" (at most {result.saturation_rate:.4g} requests/s)" if result.saturation_rate else ""
        return f"{rate} requests arrive faster than they are served{most}"
    broken = [
        f"{LABELS[name]} p{objective.goodput_share * 100:g} {milliseconds(float('nan') if late is None else late)}, "
        f"limit {milliseconds(objective.slo[name] * 1e3)}"
        for name, late in missed_limits(table, finalist).items()
    ]
    detail = f" ({'; '.join(broken)})" if broken else ""
    return f"{rate} only {percent(result.good)} of requests meet the limits{detail}"


def missed_limits(table: PlanTable, finalist: Finalist) -> dict[str, float | None]:
    """The limits that a plan misses in its simulation: ``{"ttft": 681.0}``, in ms, of the share that counts."""
    result = finalist.final
    if result is None:
        return {}
    late = {name: getattr(result, f"{name}_ms").get("share") for name in table.problem.objective.slo}
    limits = table.problem.objective.slo
    return {name: value for name, value in late.items() if value is None or value > limits[name] * 1e3}


def margin(table: PlanTable, finalists: list[Finalist]) -> dict[str, float]:
    """What is left to each limit, the winner's lead over the runner-up, and how far predictions are off, as shares."""
    winner = finalists[0]
    margins: dict[str, float] = {"prediction_error": table.prediction_error(winner.row)}
    if winner.final is not None:
        for name, limit in table.problem.objective.slo.items():
            kept = getattr(winner.final, f"{name}_ms").get("share")
            if kept is not None:
                margins[name] = 1 - kept / (limit * 1e3)
    second = _runner_up(finalists)
    if second is not None:
        margins["runner_up"] = abs(winner.value - finalists[second].value) / abs(finalists[second].value)
    return margins


def _runner_up(finalists: list[Finalist]) -> int | None:
    """Index of the best plan after the winner that holds, of those whose highest rate was measured as the winner's."""
    return next((n for n, one in enumerate(finalists[1:], 1) if one.holds and not one.bound), None)


def explain_winner(table: PlanTable, finalists: list[Finalist], candidates: list[Candidate]) -> list[str]:
    """A few sentences: the winner's lead, its ties, the limit nearest to it, and the best plan of the other mode."""
    margins = margin(table, finalists)
    lead = winner_clause(table, candidates[0]) + runner_up_clause(table, finalists, candidates, margins)
    sentences = [
        f"{candidates[0].label} {lead}",
        _ties_clause(table, finalists[0], candidates),
        _nearest_limit(table, finalists[0], margins),
    ]
    return [sentence for sentence in (*sentences, _other_mode(table, candidates[0])) if sentence]


def _ties_clause(table: PlanTable, winner: Finalist, candidates: list[Candidate]) -> str:
    """The plans that are too near to tell; empty if there are none."""
    tied = [plan for plan in candidates if plan.verdict == "ties"]
    if not tied:
        return ""
    band = table.expected_errors(winner.row).get("e2el")
    names = ", ".join(plan.label for plan in tied[:NAMED]) + (f" and {len(tied) - NAMED} more" if tied[NAMED:] else "")
    of = f" of {percent(band.p50)} ({band.rows:,} runs of {band.kind})" if band else ""
    verb, simplest = ("differs", "simpler") if len(tied) == 1 else ("differ", "simplest")
    return f"{names} {verb} by less than the expected prediction error{of}: choose the {simplest}."


def _nearest_limit(table: PlanTable, winner: Finalist, margins: dict[str, float]) -> str:
    """The limit with the least margin, and the margins of the others; empty without limits."""
    objective = table.problem.objective
    limited = [name for name in objective.slo if name in margins]
    if not limited or winner.final is None:
        return ""
    nearest = min(limited, key=lambda name: margins[name])
    kept = getattr(winner.final, f"{nearest}_ms")["share"]
    spare = "".join(f"; {LABELS[name]} has {percent(margins[name])} headroom" for name in limited if name != nearest)
    return (
        f"The tightest limit is {LABELS[nearest]}: {percent(objective.goodput_share)} of requests stay within "
        f"{milliseconds(kept)}, and the limit is {milliseconds(objective.slo[nearest] * 1e3)}{spare}."
    )


def _best_metrics(plan: Candidate) -> PlanMetrics:
    """The metrics of the simulation, or the estimated ones."""
    return plan.simulated or plan.priced


def winner_clause(table: PlanTable, winner: Candidate) -> str:
    """What the winner does: ``serves 21.5 requests/s, 1,234 output tokens/s per GPU``"""
    m = _best_metrics(winner)
    if table.problem.objective.name == "latency":
        first, each = milliseconds(m.ttft_ms), milliseconds(m.tpot_ms)
        return f"completes a request in {milliseconds(m.e2el_ms)} (TTFT {first}, TPOT {each})"
    on = f" on {plural(winner.gpus, 'GPU')}" if table.problem.traffic.request_rate else ""
    rate = f"{m.request_rate:.4g}{confidence(winner.trial)} requests/s{on}"
    return f"serves {rate}, {m.output_throughput_per_gpu:,.0f} output tokens/s per GPU"


def confidence(trial: SimulationResult | None) -> str:
    """Half of the confidence interval of a highest rate: `` ± 1.8%``; empty where there is none."""
    if trial is None or trial.request_rate_low is None or trial.request_rate_high is None:
        return ""
    return f" ± {percent((trial.request_rate_high - trial.request_rate_low) / 2 / trial.request_rate)}"


def runner_up_clause(
    table: PlanTable, finalists: list[Finalist], candidates: list[Candidate], margins: dict[str, float]
) -> str:
    """The rest of that sentence: ``, 4.1% more than the runner-up, 2 × tp1 fp8 (1,185).``"""
    second = _runner_up(finalists)
    if second is None:
        lost = len(finalists) - 1
        if not lost:
            return "; no other plan was close enough to simulate."
        return (
            f"; none of the {lost} other plans simulated meets the limits."
            if lost > 1
            else "; the one other plan simulated misses the limits."
        )
    winner, plan, objective = candidates[0], candidates[second], table.problem.objective.name
    best, other = _best_metrics(winner), _best_metrics(plan)
    name = plan.label + (f" on {plan.gpu}" if plan.gpu != winner.gpu else "")
    if objective in ("cost", "energy"):
        metric = METRIC_OF[objective]
        return f", {getattr(best, metric):.3g} {UNITS[objective]}; the runner-up, {name}: {getattr(other, metric):.3g}."
    if table.problem.traffic.request_rate and objective == "throughput":
        if plan.gpus > winner.gpus:
            more = plural(plan.gpus - winner.gpus, "GPU")
            return f"; the runner-up, {name}, needs {more} more."
        kept = [percent(one.final.good) for one in (finalists[second], finalists[0]) if one.final is not None]
        share = f"{' of requests instead of '.join(kept)}" if len(set(kept)) > 1 else f"as many requests ({kept[0]})"
        return f"; the runner-up, {name}, needs as many GPUs and meets the limits for {share}."
    metric_text = milliseconds(other.e2el_ms) if objective == "latency" else f"{other.output_throughput_per_gpu:,.0f}"
    compared = "faster" if objective == "latency" else "more"
    return f", {percent(margins['runner_up'])} {compared} than the runner-up, {name} ({metric_text})."


def _compared(change: float) -> str:
    """``14.5% less than``; a difference that its digits do not show is none."""
    if abs(change) < 0.0005:
        return "the same as"
    return f"{percent(abs(change))} {'more' if change > 0 else 'less'} than"


def _other_mode(table: PlanTable, winner: Candidate) -> str:
    """The best plan of the mode that the winner is not, by estimates; empty if that mode was not searched."""
    p, objective = table.plans, table.problem.objective.name
    other_mode = (p.decode_server < 0) if winner.mode == "disaggregated" else (p.decode_server >= 0)
    rows = np.flatnonzero(other_mode & (p.status == Status.MEETS_SLO))
    name = "aggregated" if winner.mode == "disaggregated" else "disaggregated"
    if not len(rows):
        return f"No {name} plan meets the limits." if other_mode.any() else ""
    other = table.candidate(int(rows[table.value(p.at(rows)).argmax()]))
    theirs, ours = (getattr(plan.priced, METRIC_OF[objective]) for plan in (other, winner))
    if not theirs or not ours:
        return ""
    change = theirs / ours - 1
    return (
        f"The best {name} plan, {other.label}, is estimated at {si(theirs)} {UNITS[objective]}, "
        f"{_compared(change)} this plan's estimate."
    )


def nearest_row(table: PlanTable) -> int:
    """The plan that comes nearest: with the lowest SLO ratio, or where all are too slow the highest rate."""
    p = table.plans
    missing = np.flatnonzero(p.status == Status.MISSES_SLO)
    if len(missing):
        return int(missing[p.slo_ratio[missing].argmin()])
    slow = np.flatnonzero(p.status == Status.TOO_SLOW)
    return int(slow[p.request_rate[slow].argmax()]) if len(slow) else 0


def rejected_plans(table: PlanTable, finalists: list[Finalist], winner: Finalist | None) -> list[Candidate]:
    """Plans that failed in the simulation, and of other servers that miss the SLO those with the highest throughput."""
    candidates = (to_candidate(table, one, winner) for one in finalists)
    rejected = [candidate for candidate in candidates if candidate.verdict == "fails"][:SHOWN]
    p, servers, space = table.plans, table.servers, table.problem.space
    aggregated = p.decode_server < 0
    max_rate = np.where(servers.served(), servers.request_rate, 0).max((1, 2)) * (space.num_gpus // servers.gpus)
    possible = set(p.prefill_server[(p.status == Status.MEETS_SLO) & aggregated].tolist())
    seen: set[tuple[str, str, str]] = set()
    for server_row in np.argsort(-max_rate, kind="stable").tolist():
        server = servers.servers[server_row]
        key = (server.gpu, str(server.layout), server.kind.quantization)
        rows = np.flatnonzero((p.prefill_server == server_row) & aggregated)
        if len(rejected) >= 2 * SHOWN or server_row in possible or not len(rows) or key in seen:
            continue
        seen.add(key)
        per_gpu = max_rate[server_row] * table.problem.traffic.output_len / space.num_gpus
        if winner is not None and len(rejected) >= FEW and per_gpu < _throughput_per_gpu(table, winner):
            break
        rejected.append(_missing_candidate(table, rows, per_gpu))
    return rejected


def _missing_candidate(table: PlanTable, rows: np.ndarray, per_gpu: float) -> Candidate:
    """The plan of one server that comes nearest to the SLO, with the throughput that it would have without one."""
    p = table.plans
    ratio = np.where(p.status[rows] == Status.MISSES_SLO, p.slo_ratio[rows], np.inf)
    row = int(rows[ratio.argmin() if np.isfinite(ratio).any() else p.request_rate[rows].argmax()])
    candidate = table.candidate(row)
    candidate.verdict = "misses"
    candidate.reason = (
        f"{status_reason(table, row)}; without limits it would reach {per_gpu:,.0f} output tokens/s per GPU"
    )
    return candidate


def _throughput_per_gpu(table: PlanTable, winner: Finalist) -> float:
    """Output tokens/s of the winner per GPU that is given, idle ones included."""
    rate = float(table.plans.request_rate[winner.row]) if winner.final is None else winner.final.request_rate
    return rate * table.problem.traffic.output_len / table.problem.space.num_gpus


def status_reason(table: PlanTable, row: int) -> str:
    """Why the plan of a row is not possible; empty if it is."""
    p, status = table.plans, table.plans.status[row]
    if status == Status.TOO_SLOW and table.problem.traffic.request_rate is None:
        return "its prefill servers cannot keep up with its decode servers at any load"
    if status == Status.TOO_SLOW:
        return f"serves {p.request_rate[row]:.4g} of the {table.problem.traffic.request_rate:.4g} requests/s"
    if status == Status.NO_CAPACITY:
        return "has no room for another prompt in a step, or for its KV cache in memory"
    if status == Status.MISSES_SLO:
        name, figure, limit = worst_limit(table, row)
        return (
            f"{LABELS[name]} of {seconds(figure)} is {percent(figure / limit - 1)} above the limit of {seconds(limit)}"
        )
    return ""


def worst_limit(table: PlanTable, row: int) -> tuple[str, float, float]:
    """The limit that a plan misses most: its name, the plan's metric and the limit, in seconds."""
    p, slo = table.plans, table.problem.objective.slo
    metrics = latencies(table.problem.traffic, float(p.ttft_at_slo_share[row]), float(p.tpot[row]))
    name = max(slo, key=lambda metric: metrics[metric] / slo[metric])
    return name, metrics[name], slo[name]


def rejections(
    table: PlanTable | None, illegal: list[RejectedServer], too_large: list[RejectedServer]
) -> dict[str, int]:
    """Every reason with the number of plans (or servers, where none of its plans was estimated) that it rules out."""
    counts: Counter[str] = Counter(server.reason for server in illegal)
    counts["does not fit in memory"] = len(too_large)
    if table is not None:
        p, slo = table.plans, table.problem.objective.slo
        counts["cannot serve the request rate"] = int((p.status == Status.TOO_SLOW).sum())
        counts["no room for another prompt or its KV cache"] = int((p.status == Status.NO_CAPACITY).sum())
        missing = p.at(p.status == Status.MISSES_SLO)
        if len(missing.gpus):
            metrics = latencies(table.problem.traffic, missing.ttft_at_slo_share, missing.tpot)
            with np.errstate(over="ignore"):  # of limits that nothing keeps
                worst = np.stack([metrics[name] / limit for name, limit in slo.items()]).argmax(0)
            for number, name in enumerate(slo):
                counts[f"misses {LABELS[name]}"] = int((worst == number).sum())
    return {reason: count for reason, count in counts.most_common() if count}


# ------------------------------------------------------------------ the table of all plans


_METRICS = (
    "request_rate",
    "output_throughput_per_gpu",
    "output_throughput_per_user",
    "ttft_ms",
    "tpot_ms",
    "e2el_ms",
    "cost_per_million_output_tokens",
    "joules_per_output_token",
)


PLAN_COLUMNS = (  # of `plan_rows`
    *("gpu", "mode", "gpus", "replicas", "layout", "decode_replicas", "decode_layout", "quantization"),
    *("kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens", *_METRICS, "possible", "reason"),
)


def plan_rows(table: PlanTable | None, rejected: list[RejectedServer]) -> list[dict[str, Any]]:
    """One row per plan, at the load that it is estimated at, then one per server that cannot be started; for a CSV."""
    rows = [_plan_row(table, row) for row in range(len(table.plans.gpus))] if table is not None else []
    return rows + [_server_row(one) for one in rejected]


def _plan_row(table: PlanTable, row: int) -> dict[str, Any]:
    plan = table.candidate(row)
    first, last = plan.pools[0], plan.pools[-1]
    split = plan.mode == "disaggregated"
    return {
        "gpu": plan.gpu,
        "mode": plan.mode,
        "gpus": plan.gpus,
        "replicas": first.replicas,
        "layout": first.layout,
        "decode_replicas": last.replicas if split else None,
        "decode_layout": last.layout if split else None,
        "quantization": first.quantization,
        "kv_cache_dtype": first.kv_cache_dtype,
        "max_num_seqs": last.max_num_seqs,
        "max_num_batched_tokens": first.max_num_batched_tokens,
        **{name: getattr(plan.priced, name) for name in _METRICS},
        "possible": bool(table.plans.status[row] == Status.MEETS_SLO),
        "reason": status_reason(table, row),
    }


def _server_row(rejected: RejectedServer) -> dict[str, Any]:
    server = rejected.server
    return {
        "gpu": server.request.device.name,
        "mode": "any",
        "gpus": server.layout.gpus,
        "replicas": None,
        "layout": str(server.layout),
        "decode_replicas": None,
        "decode_layout": None,
        "quantization": server.kind.quantization,
        "kv_cache_dtype": server.kind.kv_cache_dtype,
        "max_num_seqs": None,
        "max_num_batched_tokens": None,
        **dict.fromkeys(_METRICS),
        "possible": False,
        "reason": rejected.reason,
    }


# ------------------------------------------------------------------ what the winner's prediction rests on


def provenance(table: PlanTable, row: int) -> list[str]:
    """Warnings of the servers of a plan: ``["kernel efficiencies are assumed from one H200"]``"""
    requests = [table.servers.servers[server].request for server in table.server_rows(row)]
    sentences = [
        sentence
        for request in requests
        for sentence in (*request.warnings, *provenance_warnings(request), *request.bind().notes)
    ]
    return list(dict.fromkeys(sentences))


def origins(table: PlanTable, row: int, plan: Candidate) -> dict[str, float]:
    """Shares of a plan's decode step whose seconds were measured, fitted or assumed: ``{"measured": 0.8, …}``"""
    server = table.servers.servers[table.server_rows(row)[-1]]
    pool, traffic = plan.pools[-1], table.problem.traffic
    concurrency = plan.trial.concurrency if plan.trial is not None else 1.0
    workload = Workload(
        batch_size=max(1, round(concurrency / pool.replicas)),
        input_len=max(1, round(traffic.input_len)),
        output_len=max(2, round(traffic.output_len)),
    )
    bound_plan = server.bind()
    phases = phase_tables(bound_plan, batch_shape_of(bound_plan, workload), "decode", True)
    shares: dict[str, float] = {}
    for op in phases["decode"].ops:
        shares[op.origin] = shares.get(op.origin, 0.0) + op.share
    return {name: share for name, share in sorted(shares.items(), key=lambda pair: -pair[1]) if share > 0}


def origins_line(shares: dict[str, float]) -> str:
    """``the winner's decode step: 88.1% measured, 11.9% assumed``"""
    parts = ", ".join(f"{percent(share)} {name}" for name, share in shares.items())
    return f"origin of its decode time: {parts}" if parts else ""


def lossy_precisions(model: Model, pool: PoolSpec) -> list[str]:
    """A warning where the precisions of a plan are not the model's own: ``["fp8 weights slightly change …"]``"""
    own = {model.dtype, *model.quantization.values()}
    lossy = [f"{pool.quantization} weights"] if pool.quantization not in own else []
    lossy += ["an fp8 KV cache"] if pool.kv_cache_dtype == "fp8" and model.kv_cache_dtype != "fp8" else []
    if not lossy:
        return []
    flags = " and ".join(short_flag(name) for name in ("quantization", "kv_cache_dtype"))
    return [f"{' and '.join(lossy)} slightly change the model's output; restrict them with {flags}"]
