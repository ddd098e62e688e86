"""A row of the table of plans, as what people and simulations read."""

from __future__ import annotations

from typing import Any, NamedTuple

from .asked import Aim, Traffic
from .found import Candidate, Figures, Pool
from .plans import Plans
from .prices import Prices
from .space import Server, Space
from .trial import Contender, Trial


class Book(NamedTuple):
    """Everything that the columns of plans refer to."""

    model: str
    space: Space
    traffic: Traffic
    aim: Aim
    prices: Prices
    plans: Plans

    def candidate(self, row: int) -> Candidate:
        """The plan of a row."""
        p, space = self.plans, self.space
        first, second = int(p.first[row]), int(p.second[row])
        pools = [self._pool("prefill" if second >= 0 else "both", first, row)]
        if second >= 0:
            pools.append(self._pool("decode", second, row))
        gpus = int(p.gpus[row])
        return Candidate(
            gpu=self.prices.servers[first].asked.device.name, mode="disaggregated" if second >= 0 else "aggregated",
            pools=pools, gpus=gpus, idle_gpus=0 if self.traffic.rate else space.num_gpus - gpus,
            priced=self.figures(row, float(p.rate[row]), float(p.ttft[row]), float(p.tpot[row])),
        )  # fmt: skip

    def _pool(self, role: str, server: int, row: int) -> Pool:
        p, one = self.plans, self.prices.servers[server]
        tp, pp, dp, ep = one.layout
        plan = one.asked.plan
        answers = role == "decode"
        return Pool(
            role=role, replicas=int((p.others if answers else p.replicas)[row]), tensor_parallel_size=tp,
            pipeline_parallel_size=pp, data_parallel_size=dp, enable_expert_parallel=ep, quantization=plan.quantization,
            kv_cache_dtype=plan.kv_cache_dtype, max_num_seqs=int(self.prices.sequences[p.seqs[row]]),
            max_num_batched_tokens=(_own(one, "max_num_batched_tokens") if answers
                                    else int(self.prices.budgets[p.budget[row]])),
        )  # fmt: skip

    def figures(self, row: int, rate: float, ttft: float, tpot: float) -> Figures:
        """What a plan does at a rate, with these means in seconds."""
        tokens, gpus = rate * self.traffic.output_len, int(self.plans.gpus[row])
        device = self.prices.servers[int(self.plans.first[row])].asked.device
        each = gpus / tokens if tokens else float("inf")  # device-seconds of a token
        return Figures(
            request_rate=rate, output_throughput=tokens,
            output_throughput_per_gpu=tokens / (gpus if self.traffic.rate else self.space.num_gpus),
            output_throughput_per_user=1 / tpot, ttft_ms=ttft * 1e3, tpot_ms=tpot * 1e3,
            e2el_ms=(ttft + (self.traffic.output_len - 1) * tpot) * 1e3,
            cost_per_million_output_tokens=each * device.price_per_hour / 3600 * 1e6 if device.price_per_hour else None,
            joules_per_output_token=each * device.power if device.power else None,
        )  # fmt: skip

    def simulated(self, row: int, trial: Trial) -> Figures | None:
        """The same from a simulation."""
        if not trial.tpot_ms:
            return None
        return self.figures(row, trial.request_rate, trial.ttft_ms["mean"] / 1e3, trial.tpot_ms["mean"] / 1e3)

    def contender(self, row: int) -> Contender:
        """The plan of a row, ready for the bench."""
        p, plan = self.plans, self.candidate(row)
        used = [int(p.first[row])] + ([int(p.second[row])] if p.second[row] >= 0 else [])
        pools = tuple((pool.role, pool.replicas, self._words(self.prices.servers[n], pool))
                      for pool, n in zip(plan.pools, used, strict=True))  # fmt: skip
        return Contender(self.model, pools, float(p.rate[row]), plan.priced.e2el_ms / 1e3)

    def _words(self, server: Server, pool: Pool) -> dict[str, Any]:
        return {**self.space.words, **server.words(), "max_num_seqs": pool.max_num_seqs,
                "max_num_batched_tokens": pool.max_num_batched_tokens}  # fmt: skip


def _own(server: Server, word: str) -> int:
    return int(getattr(server.asked.plan, word))
