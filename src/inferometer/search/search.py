"""The search itself: ``search("llama-3.1-70b", gpu="h200", num_gpus=16, input_len=4000, output_len=500,
goodput="ttft:500,tpot:50")`` gives `Search`: the winner, why it won, what else there was, and how to start it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..base.errors import BadValue, check_int
from ..base.parallel_map import worker_count
from ..serving.trace import Trace
from ..specs.catalog import gpu_names, hardware
from . import explanation, serve_commands
from .disaggregated import disaggregated
from .finalists import Entry, Ways, contest, ranked
from .front import listed
from .objective import Aim, Traffic, aim, traffic
from .plan_table import MET, Book, Plans, aggregated, joined
from .relaxation import relaxations
from .search_result import Candidate, Search
from .server_costs import prices
from .space import Server, Space, servers, space
from .steady_state import grid

MODES = ("aggregated", "disaggregated")
MOST_LOADS = 10**7  # points that are priced
MOST_PAIRED = 128  # GPUs on which any number of readers is paired with any number that answer
Progress = Callable[[str, int], None]


def search(model: str, gpu: str | Sequence[str] = "h100-sxm", **words: Any) -> Search:
    """Price every legal plan on the GPUs, simulate the best, and say which one to run; words as of `searched`."""
    return searched(model, gpu, **words)[0]


def searched(
    model: str,
    gpu: str | Sequence[str] = "h100-sxm",
    *,
    num_gpus: int | None = None,
    nodes: int | None = None,
    trace: Trace | None = None,
    input_len: float | str | None = None,
    output_len: float | str | None = None,
    prefix_len: int = 0,
    request_rate: float | None = None,
    burstiness: float = 1.0,
    goodput: str | Iterable[str] | Mapping[str, float] | None = None,
    goodput_share: float = 0.9,
    objective: str = "throughput",
    mode: str = "both",
    finalists: int = 6,
    relax: bool = True,
    backend: str = "processes",
    jobs: int = 1,
    address: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **words: Any,
) -> tuple[Search, Book | None, list[tuple[Server, str]]]:
    """What was found, all plans that were priced, and the servers that could not be started, each with its reason.

    Without ``request_rate`` (or a trace with arrivals) the highest rate that keeps the limits of ``goodput`` (ms) is
    looked for; with one, the plan that carries it best. Sizes, precisions and limits may be given as one value or
    several (``tensor_parallel_size=[2, 4]``) and are tried as stated in ``Search.space`` where they are not.
    """
    started = time.perf_counter()
    gpus = gpu_names(gpu) if isinstance(gpu, str) else list(gpu)
    count, words = _size(gpus, num_gpus, nodes, words)
    asked = traffic(
        trace=trace,
        input_len=input_len,
        output_len=output_len,
        prefix_len=prefix_len,
        seed=seed,
        request_rate=request_rate,
        burstiness=burstiness,
        block_tokens=words.get("block_size") or 16,
    )
    wanted = aim(objective, goodput, goodput_share, asked.output_len)
    if not wanted.limits and asked.rate is None and objective != "latency":
        raise BadValue(
            "a search needs something that must hold: limits such as --goodput ttft:500,tpot:50, a "
            "--request-rate, or both"
        )
    if mode not in (*MODES, "both"):
        raise BadValue(f"--mode must be aggregated, disaggregated or both, not {mode!r}")
    check_int("--finalists", finalists, most=1000)
    worker_count(backend, jobs)
    words.setdefault("frontend", "http")
    where = space(model, gpus, count, modes=MODES if mode == "both" else (mode,), **words)
    _priced(where, wanted)
    able, illegal = servers(where, model)
    _bounded(where, asked, len(able))
    found = _Quest(model, where, asked, wanted, progress or (lambda stage, done: None))
    found.timed("enumerate", started)
    book = found.price(able, illegal)
    entries = found.simulate(book, Ways(finalists, backend, jobs, address)) if book is not None else []
    result = found.told(book, entries, trace)
    if not result.feasible and relax:
        again = {
            "model": model,
            "gpu": gpus,
            "trace": trace,
            "input_len": input_len,
            "output_len": output_len,
            "prefix_len": prefix_len,
            "burstiness": burstiness,
            "goodput_share": goodput_share,
            "seed": seed,
            "objective": objective,
            "mode": mode,
            "finalists": 2,
            "relax": False,
            **words,
        }
        begun = time.perf_counter()
        limits = {name: limit * 1e3 for name, limit in wanted.limits.items()}
        result.relaxations = relaxations(search, again, book, limits, request_rate, count, progress)
        result.seconds["relax"] = time.perf_counter() - begun
    result.seconds["total"] = time.perf_counter() - started
    return result, book, [*found.illegal, *found.lacking]


def _size(
    gpus: list[str], num_gpus: int | None, nodes: int | None, words: dict[str, Any]
) -> tuple[int, dict[str, Any]]:
    """How many GPUs there are: said, or by nodes, or one usual node."""
    per_node = words.get("gpus_per_node")
    usual = (
        check_int("--gpus-per-node", per_node, most=65536) if per_node is not None else hardware(gpus[0]).gpus_per_node
    )
    if nodes is not None:
        room = check_int("--nodes", nodes, most=10**5) * usual
        if num_gpus is not None and num_gpus > room:
            raise BadValue(f"--num-gpus {num_gpus:,} are more than {nodes:,} nodes of {usual} GPUs have: {room:,}")
        return (room if num_gpus is None else num_gpus), {**words, "gpus_per_node": usual}
    return (usual if num_gpus is None else num_gpus), dict(words)


def _bounded(where: Space, asked: Traffic, count: int) -> None:
    """Refuse what would take memory and minutes rather than seconds."""
    loads = count * len(where.budgets) * len(where.sequences) * len(grid(max(where.sequences)))
    if loads > MOST_LOADS:
        limits = f"{len(where.budgets):,} token budgets × {len(where.sequences):,} limits of sequences"
        raise BadValue(
            f"{count:,} servers × {limits} at every load are {loads:,} points, more than {MOST_LOADS:,}: "
            "give fewer values"
        )
    if asked.rate is not None and "disaggregated" in where.modes and where.num_gpus > MOST_PAIRED:
        raise BadValue(
            f"at a given rate pools are paired on up to {MOST_PAIRED} GPUs, not {where.num_gpus:,}: leave "
            "--request-rate away, or give --mode aggregated"
        )


def _priced(where: Space, wanted: Aim) -> None:
    figure = {"cost": "price_per_hour", "energy": "power"}.get(wanted.objective)
    for name in where.gpus if figure else ():
        if not getattr(hardware(name), str(figure)):
            raise BadValue(
                f"--objective {wanted.objective} needs the {figure} of {hardware(name).name}, which nobody "
                f"knows: give it as --gpu {hardware(name).name}:{figure}=…"
            )


class _Quest:
    """One search under way: what it has priced and simulated, and how long that took."""

    def __init__(self, model: str, where: Space, asked: Traffic, wanted: Aim, progress: Progress) -> None:
        self.model, self.space, self.traffic, self.aim, self.progress = model, where, asked, wanted, progress
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self.illegal: list[tuple[Server, str]] = []
        self.lacking: list[tuple[Server, str]] = []

    def timed(self, stage: str, since: float) -> float:
        """Note how long a stage took."""
        now = time.perf_counter()
        self.seconds[stage] = now - since
        return now

    def pricing(self, done: int) -> None:
        """Tell how many families of servers have been priced."""
        self.progress("pricing", done)

    def price(self, able: list[Server], illegal: list[tuple[Server, str]]) -> Book | None:
        """All plans, priced; None if no server can be started."""
        since = time.perf_counter()
        self.illegal = illegal
        self.counts = {"servers": len(able) + len(illegal), "servers_illegal": len(illegal)}
        table, lacks = prices(able, self.space, self.traffic, self.pricing) if able else (None, [])
        self.lacking = [(server, lack) for server, lack in zip(able, lacks, strict=True) if lack]
        self.counts["servers_too_large"] = len(self.lacking)
        if table is None:
            self.timed("price", since)
            return None
        parts: list[Plans] = []
        if "aggregated" in self.space.modes:
            parts.append(aggregated(table, self.space, self.traffic, self.aim))
            self.counts["plans_aggregated"] = len(parts[0].first)
        if "disaggregated" in self.space.modes:
            pairs, considered = disaggregated(table, self.space, self.traffic, self.aim)
            parts += [pairs] if pairs is not None else []
            self.counts["plans_disaggregated"] = considered
            self.counts["plans_dominated"] = considered - (len(pairs.first) if pairs is not None else 0)
        self.counts["points"] = table.points
        self.timed("price", since)
        if not parts or not sum(len(part.first) for part in parts):
            return None
        book = Book(self.model, self.space, self.traffic, self.aim, table, joined(parts))
        self.counts["plans_possible"] = int((book.plans.verdict == MET).sum())
        return book

    def simulate(self, book: Book, ways: Ways) -> list[Entry]:
        """The finalists under real arrivals."""
        since = time.perf_counter()
        rows, values = ranked(book)
        self.counts["layouts_possible"] = len(rows)
        ways = ways._replace(progress=lambda done: self.progress("simulating", done), known={})
        entries = contest(book, rows, values, ways)
        self.counts["plans_simulated"] = len(entries)
        self.counts["simulations"] = sum(len(one.trials) for one in entries)
        self.timed("simulate", since)
        return entries

    def told(self, book: Book | None, entries: list[Entry], trace: Trace | None) -> Search:
        """The result."""
        best = entries[0] if entries and entries[0].value > float("-inf") else None
        plans = [explanation.told(book, one, best) for one in entries] if book is not None else []
        winner = plans[0] if best is not None else None
        points, _ = listed(book) if book is not None else ([], None)
        first = book.prices.servers[0].request if book is not None else None
        lengths = {
            "input_len": self.traffic.input_len,
            "output_len": self.traffic.output_len,
            "prefix_len": self.traffic.prefix_len,
            "request_rate": self.traffic.rate,
            "trace": trace.source if trace is not None else None,
        }
        return Search(
            model=first.model.name if first else self.model,
            engine=first.engine.name if first else "",
            num_gpus=self.space.num_gpus,
            objective=self.aim.objective,
            goodput_share=self.aim.share,
            workload=lengths,
            goodput={name: limit * 1e3 for name, limit in self.aim.limits.items()},
            feasible=winner is not None,
            reason="" if winner is not None else self._nothing(book, entries),
            winner=winner,
            plans=[plan for plan in plans if plan.verdict != "fails"],
            why=explanation.why(book, entries, plans) if book is not None and winner is not None else [],
            margin=explanation.margin(book, entries) if book is not None and winner is not None else {},
            rejected=explanation.rejected(book, entries, best) if book is not None else [],
            rejections=explanation.rejections(book, self.illegal, self.lacking),
            front=points,
            space=self.space.stated(),
            counts=self.counts,
            relaxations=[],
            seconds=self.seconds,
            warnings=self._warnings(book, winner),
            commands=self._commands(book, best, winner, trace) if book is not None and best and winner else {},
        )

    def _nothing(self, book: Book | None, entries: list[Entry]) -> str:
        """Why no plan is possible, and how far the closest is away."""
        if book is None:
            if self.lacking:
                server, lack = min(self.lacking, key=lambda one: float(re.findall(r"[\d.]+", one[1])[0]))
                return f"the model fits on no server of up to {self.space.num_gpus} GPUs: {server.layout} {lack}"
            reasons = explanation.rejections(None, self.illegal, [])
            return f"no layout is legal: {next(iter(reasons), 'none was asked for')}"
        if entries:
            near = max(entries, key=lambda one: one.final.good if one.final is not None else -1.0)
            plan = book.candidate(near.row).label
            return f"no plan holds in the simulation; of {plan}, the closest, {explanation.failed(book, near)}"
        row = explanation.nearest(book)
        return f"no plan meets it; the closest is {book.candidate(row).label}: {explanation.reason(book, row)}"

    def _warnings(self, book: Book | None, winner: Candidate | None) -> list[str]:
        if book is None:
            return []
        found = list(book.prices.servers[0].request.warnings)
        if winner is None:
            return found
        if winner.idle_gpus:
            found.append(f"{winner.idle_gpus} of the {self.space.num_gpus} GPUs stay idle")
        own, pool = book.prices.servers[0].request, winner.pools[0]
        given = {own.model.dtype, *own.model.quantization.values()}
        lossy = [f"{pool.quantization} weights"] if pool.quantization not in given else []
        lossy += ["an fp8 KV cache"] if pool.kv_cache_dtype == "fp8" and own.model.kv_cache_dtype != "fp8" else []
        if lossy:
            found.append(
                f"{' and '.join(lossy)} change a little what the model answers: -q and --kv-cache-dtype say "
                "what is allowed"
            )
        return found

    def _commands(self, book: Book, best: Entry, winner: Candidate, trace: Trace | None) -> dict[str, list[str]]:
        server = book.prices.servers[int(book.plans.first[best.row])]
        name = self.model if "/" in self.model else server.request.hf_id or self.model
        plan = server.request.plan
        found = serve_commands.commands(
            winner,
            name,
            own=server.given[0] is None,
            own_cache=server.given[1] == "auto",
            longest=self.traffic.longest,
            per_node=plan.gpus_per_node,
            speculation=plan.speculation,
        )
        rate = best.final.request_rate if best.final is not None else winner.priced.request_rate
        count = max(200, round(5 * rate * winner.priced.e2el_ms / 1e3))
        return {
            **found,
            "bench": serve_commands.bench(
                name, self.traffic, self.aim, rate, count, trace.source if trace is not None else None
            ),
        }
