"""Every plan that was looked at, as rows of a table: figures, and why it is not possible where it is not."""

from __future__ import annotations

from typing import Any

from .plans import MET
from .rows import Book
from .space import Server
from .verdict import reason

_WORDS = ("request_rate", "output_throughput_per_gpu", "output_throughput_per_user", "ttft_ms", "tpot_ms", "e2el_ms",
          "cost_per_million_output_tokens", "joules_per_output_token")  # fmt: skip


def table(book: Book | None, lost: list[tuple[Server, str]]) -> list[dict[str, Any]]:
    """One row per plan, at the load that it is priced at; then servers that cannot be started."""
    found = []
    for row in range(len(book.plans.first)) if book is not None else ():
        assert book is not None
        plan = book.candidate(row)
        first, last = plan.pools[0], plan.pools[-1]
        split = plan.mode == "disaggregated"
        line: dict[str, Any] = {"gpu": plan.gpu, "mode": plan.mode, "gpus": plan.gpus, "replicas": first.replicas,
                                "layout": first.layout, "decode_replicas": last.replicas if split else None,
                                "decode_layout": last.layout if split else None, "quantization": first.quantization,
                                "kv_cache_dtype": first.kv_cache_dtype, "max_num_seqs": last.max_num_seqs,
                                "max_num_batched_tokens": first.max_num_batched_tokens}  # fmt: skip
        line |= {word: getattr(plan.priced, word) for word in _WORDS}
        line["possible"] = int(book.plans.verdict[row]) == MET
        line["reason"] = reason(book, row)
        found.append(line)
    for server, why in lost:
        plan_ = server.asked.plan
        found.append({
            "gpu": server.asked.device.name, "mode": "any", "gpus": server.layout.gpus, "replicas": None,
            "layout": str(server.layout), "decode_replicas": None, "decode_layout": None,
            "quantization": plan_.quantization, "kv_cache_dtype": plan_.kv_cache_dtype, "max_num_seqs": None,
            "max_num_batched_tokens": None, **dict.fromkeys(_WORDS), "possible": False, "reason": why,
        })  # fmt: skip
    return found
