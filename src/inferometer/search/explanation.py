"""Why the winner won, by how much, and why the others did not: sentences made of the figures that were compared."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ..base.units import percent, seconds, si
from .finalists import Entry
from .plan_table import MET, MISSES, NO_ROOM, TOO_SLOW, Book, value
from .search_result import Candidate
from .space import Server

SHOWN, FEW = 5, 2  # rejected plans that are named, of each kind; those that look worse than the winner
UNITS = {
    "throughput": "output tokens/s per GPU",
    "cost": "USD for a million output tokens",
    "latency": "from request to last token",
    "energy": "J for an output token",
}


def told(book: Book, entry: Entry, winner: Entry | None) -> Candidate:
    """A simulated plan with what the simulation says."""
    found = book.candidate(entry.row)
    found.simulations = len(entry.trials)
    found.trial = entry.final
    found.simulated = book.simulated(entry.row, entry.final) if entry.final is not None else None
    if entry.value > -np.inf:
        found.verdict = "wins" if winner is entry else "holds"
        return found
    found.verdict = "beaten" if winner is not None and _free(book) and not entry.reason else "fails"
    found.reason = entry.reason or failed(book, entry)
    return found


def _free(book: Book) -> bool:
    """Whether plans compete by the rate that they hold, so that one that fails at a rate may hold a lower one."""
    return book.traffic.rate is None and book.aim.objective != "latency"


def failed(book: Book, entry: Entry) -> str:
    """Why a plan did not hold in the simulation."""
    trial = entry.final
    if trial is None:
        return "no simulation could be run"
    rate = f"at {trial.request_rate:.4g} requests/s"
    broken = [
        f"{name} {_ms(getattr(trial, f'{name}_ms').get('share', float('nan')))} of {_ms(limit * 1e3)}"
        for name, limit in book.aim.limits.items()
        if getattr(trial, f"{name}_ms").get("share", np.inf) > limit * 1e3
    ]
    if trial.good < book.aim.share:
        return f"{rate} only {percent(trial.good)} of the requests keep the limits" + (
            f" ({', '.join(broken)} for {percent(book.aim.share)})" if broken else ""
        )
    return f"{rate} requests come faster than they are answered"


def margin(book: Book, entries: list[Entry]) -> dict[str, float]:
    """What is left to each limit, and the winner's lead over the runner-up, as shares."""
    winner = entries[0]
    found: dict[str, float] = {}
    if winner.final is not None:
        for name, limit in book.aim.limits.items():
            kept = getattr(winner.final, f"{name}_ms").get("share")
            if kept is not None:
                found[name] = 1 - kept / (limit * 1e3)
    second = next((one for one in entries[1:] if one.value > -np.inf), None)
    if second is not None:
        found["runner_up"] = abs(winner.value - second.value) / abs(second.value)
    return found


def why(book: Book, entries: list[Entry], plans: list[Candidate]) -> list[str]:
    """Two or three sentences: the lead, what ends it, and what other ways would give."""
    winner, best = entries[0], plans[0]
    left = margin(book, entries)
    found = [f"{best.label} {_does(book, best)}" + _lead(book, entries, plans, left)]
    tight = min((name for name in book.aim.limits if name in left), key=lambda name: left[name], default=None)
    if tight is not None and winner.final is not None:
        kept = getattr(winner.final, f"{tight}_ms")["share"]
        spare = "".join(
            f"; {name} has {percent(left[name])} to spare" for name in book.aim.limits if name in left and name != tight
        )
        found.append(
            f"The limit that is nearest is {tight}: {percent(book.aim.share)} of the requests stay within "
            f"{_ms(kept)} of {_ms(book.aim.limits[tight] * 1e3)}{spare}."
        )
    other = _otherwise(book, best)
    return [*found, other] if other else found


def _does(book: Book, best: Candidate) -> str:
    f = best.simulated or best.priced
    if book.aim.objective == "latency":
        return f"answers in {_ms(f.e2el_ms)} ({_ms(f.ttft_ms)} to the first token, then {_ms(f.tpot_ms)} each)"
    on = f" on {best.gpus} GPUs" if book.traffic.rate else ""
    return f"carries {f.request_rate:.4g} requests/s{on}, {f.output_throughput_per_gpu:,.0f} output tokens/s per GPU"


def _lead(book: Book, entries: list[Entry], plans: list[Candidate], left: dict[str, float]) -> str:
    second = next((n for n, one in enumerate(entries[1:], 1) if one.value > -np.inf), None)
    if second is None:
        lost = len(entries) - 1
        return f"; none of the {lost} others that were simulated holds." if lost else "; no other plan came so far."
    f, best = plans[second].simulated or plans[second].priced, plans[0].simulated or plans[0].priced
    name = plans[second].label + (f" on {plans[second].gpu}" if plans[second].gpu != plans[0].gpu else "")
    if book.aim.objective in ("cost", "energy"):
        word = "cost_per_million_output_tokens" if book.aim.objective == "cost" else "joules_per_output_token"
        return f", {getattr(best, word):.3g} {UNITS[book.aim.objective]}; the next, {name}: {getattr(f, word):.3g}."
    if book.traffic.rate and book.aim.objective == "throughput":
        more = plans[second].gpus - plans[0].gpus
        kept = [percent(one.final.good) for one in (entries[second], entries[0]) if one.final is not None]
        return f"; the next, {name}, " + (
            f"needs {more} GPUs more."
            if more > 0
            else f"needs as many and keeps the limits for {' of the requests, not '.join(kept)}."
        )
    what = _ms(f.e2el_ms) if book.aim.objective == "latency" else f"{f.output_throughput_per_gpu:,.0f}"
    return f", {percent(left['runner_up'])} better than the next, {name} ({what})."


def _otherwise(book: Book, best: Candidate) -> str:
    """The best plan of the other mode, as it is priced."""
    p = book.plans
    mode = (p.second < 0) if best.mode == "disaggregated" else (p.second >= 0)
    rows = np.flatnonzero(mode & (p.verdict == MET))
    name = "aggregated" if best.mode == "disaggregated" else "disaggregated"
    if not len(rows):
        return f"No {name} plan keeps the limits." if mode.any() else ""
    values = value(p.at(rows), book.prices, book.space, book.traffic, book.aim)
    row = int(rows[values.argmax()])
    other, mine = book.candidate(row), best.priced
    pairs = {
        "throughput": (other.priced.output_throughput_per_gpu, mine.output_throughput_per_gpu),
        "latency": (other.priced.e2el_ms, mine.e2el_ms),
        "cost": (other.priced.cost_per_million_output_tokens, mine.cost_per_million_output_tokens),
        "energy": (other.priced.joules_per_output_token, mine.joules_per_output_token),
    }
    theirs, ours = pairs[book.aim.objective]
    if not theirs or not ours:
        return ""
    change = theirs / ours - 1
    return (
        f"The best {name} plan, {other.label}, is priced at {si(theirs)} {UNITS[book.aim.objective]}, "
        f"{percent(abs(change))} {'more' if change > 0 else 'less'} than this one's price."
    )


def nearest(book: Book) -> int:
    """The row that comes nearest: that misses limits least, or carries most of the rate."""
    p = book.plans
    able = np.flatnonzero(p.verdict == MISSES)
    if len(able):
        return int(able[p.miss[able].argmin()])
    slow = np.flatnonzero(p.verdict == TOO_SLOW)
    return int(slow[p.rate[slow].argmax()]) if len(slow) else 0


def rejected(book: Book, entries: list[Entry], winner: Entry | None) -> list[Candidate]:
    """The best-looking plans that are not possible: by what they would give if nobody waited."""
    p, prices = book.plans, book.prices
    found = [plan for plan in (told(book, one, winner) for one in entries) if plan.verdict == "fails"][:SHOWN]
    able = prices.fits.any(2) & (prices.rate > 0)
    top = np.where(able, prices.rate, 0).max((1, 2)) * (book.space.num_gpus // prices.gpus)
    met = set(p.first[(p.verdict == MET) & (p.second < 0)].tolist())
    seen: set[tuple[str, str, str]] = set()
    for server in np.argsort(-top, kind="stable").tolist():
        one = prices.servers[server]
        kind = (one.gpu, str(one.layout), one.request.plan.quantization)
        mine = np.flatnonzero((p.first == server) & (p.second < 0))
        if len(found) >= 2 * SHOWN or server in met or not len(mine) or kind in seen:
            continue
        seen.add(kind)
        off = np.where(p.verdict[mine] == MISSES, p.miss[mine], np.inf)
        row = int(mine[off.argmin() if np.isfinite(off).any() else p.rate[mine].argmax()])
        plan = book.candidate(row)
        most = top[server] * book.traffic.output_len / book.space.num_gpus
        if winner is not None and len(found) >= FEW and most < _given(book, winner):
            break
        plan.verdict = "misses"
        plan.reason = f"{reason(book, row)}; without limits it would give {most:,.0f} output tokens/s per GPU"
        found.append(plan)
    return found


def _given(book: Book, winner: Entry) -> float:
    """Output tokens/s per GPU of the winner, of all GPUs that are there."""
    rate = winner.final.request_rate if winner.final is not None else float(book.plans.rate[winner.row])
    return rate * book.traffic.output_len / book.space.num_gpus


def reason(book: Book, row: int) -> str:
    """Why the plan of a row is not possible; empty if it is."""
    p, verdict = book.plans, int(book.plans.verdict[row])
    if verdict == TOO_SLOW:
        return f"carries {p.rate[row]:.4g} of the {book.traffic.rate:.4g} requests/s"
    if verdict == NO_ROOM:
        return "has no room for a prompt in a step, or for its cache in memory, beside those that run"
    if verdict == MISSES:
        name, figure, limit = missed(book, row)
        return f"{name} of {seconds(figure)} is {percent(figure / limit - 1)} above the limit of {seconds(limit)}"
    return ""


def missed(book: Book, row: int) -> tuple[str, float, float]:
    """The limit that a plan misses most: its name, the figure and the limit."""
    p, answer = book.plans, book.traffic.output_len - 1
    figures = {"ttft": float(p.late[row]), "tpot": float(p.tpot[row])}
    figures["e2el"] = figures["ttft"] + answer * figures["tpot"]
    name = max(book.aim.limits, key=lambda word: figures[word] / book.aim.limits[word])
    return name, figures[name], book.aim.limits[name]


def rejections(
    book: Book | None, illegal: list[tuple[Server, str]], lacking: list[tuple[Server, str]]
) -> dict[str, int]:
    """Every reason with the number of plans (servers, where none of its plans was priced) that it rules out."""
    found: Counter[str] = Counter(reason for _, reason in illegal)
    found["does not fit in memory"] = len(lacking)
    if book is not None:
        p = book.plans
        found["carries less than the rate"] = int((p.verdict == TOO_SLOW).sum())
        found["no room for a prompt or its cache beside those that run"] = int((p.verdict == NO_ROOM).sum())
        off = np.flatnonzero(p.verdict == MISSES)
        answer = book.traffic.output_len - 1
        figures = {"ttft": p.late[off], "tpot": p.tpot[off], "e2el": p.late[off] + answer * p.tpot[off]}
        names = list(book.aim.limits)
        if len(off):
            ratios = np.stack([figures[name] / book.aim.limits[name] for name in names])
            for number, name in enumerate(names):
                found[f"misses {name}"] = int((ratios.argmax(0) == number).sum())
    return {key: count for key, count in found.most_common() if count}


def _ms(value: float) -> str:
    return seconds(value / 1e3)


# ------------------------------------------------------------------ table
# Every plan that was looked at, as rows of a table: figures, and why it is not possible where it is not.


_WORDS = (
    "request_rate",
    "output_throughput_per_gpu",
    "output_throughput_per_user",
    "ttft_ms",
    "tpot_ms",
    "e2el_ms",
    "cost_per_million_output_tokens",
    "joules_per_output_token",
)


def table(book: Book | None, lost: list[tuple[Server, str]]) -> list[dict[str, Any]]:
    """One row per plan, at the load that it is priced at; then servers that cannot be started."""
    found = []
    for row in range(len(book.plans.first)) if book is not None else ():
        assert book is not None
        plan = book.candidate(row)
        first, last = plan.pools[0], plan.pools[-1]
        split = plan.mode == "disaggregated"
        line: dict[str, Any] = {
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
        }
        line |= {word: getattr(plan.priced, word) for word in _WORDS}
        line["possible"] = int(book.plans.verdict[row]) == MET
        line["reason"] = reason(book, row)
        found.append(line)
    for server, why in lost:
        plan_ = server.request.plan
        found.append(
            {
                "gpu": server.request.device.name,
                "mode": "any",
                "gpus": server.layout.gpus,
                "replicas": None,
                "layout": str(server.layout),
                "decode_replicas": None,
                "decode_layout": None,
                "quantization": plan_.quantization,
                "kv_cache_dtype": plan_.kv_cache_dtype,
                "max_num_seqs": None,
                "max_num_batched_tokens": None,
                **dict.fromkeys(_WORDS),
                "possible": False,
                "reason": why,
            }
        )
    return found
