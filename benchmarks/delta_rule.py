"""Gated delta nets against public kernel tables: rows that no fit saw, and GPUs that none saw.

    python benchmarks/delta_rule.py              prints the table of docs/accuracy/kernels.md
    python benchmarks/delta_rule.py --write      puts it there

Of decode steps those count whose states do not fit into the cache: repeated alone, as the tables did it, smaller ones
stay there, which they do not between the layers of a model. Cells are the median and the mean of
|predicted/measured - 1| in per cent. "one constant" is the engine's share of peak FLOP/s for all prompts, and of the
bandwidth for decoding, as devices without figures still have it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accuracy_page
import numpy as np

from inferometer.base.symbols import evaluate
from inferometer.costs.kernels import Terms, assumed, relative_reach
from inferometer.costs.kernels.delta_rule import delta_rule, delta_rules
from inferometer.network.blocks.recurrent import delta_net
from inferometer.network.operators import MEMORY_FIELDS
from inferometer.specs import catalog

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))  # the tables are read there

from fit_delta_rule import FITTED_TO, Rows, kept_rows, predicted

STATE = 128 * 128 * 4  # bytes of a head's state
LARGE = 512  # tokens of a prompt step, from which on the kernels count in a first token's latency


def layer(rows: Rows) -> tuple[Any, dict[str, Any], Terms]:
    """The operator of rows, its shape, and what it would take at the peaks."""
    part = delta_net(
        hidden_size=1,
        linear_num_key_heads=1,
        linear_num_value_heads=1,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    )
    op = next(op for op in part.ops if op.kind == "scan")
    device, tokens, phase = catalog.hardware(rows.device), rows.seqs * rows.length, rows.phase
    env: dict[str, Any] = {
        **part.dims,
        "linear_num_key_heads": rows.key_heads,
        "linear_num_value_heads": rows.heads,
        "tp": 1,
        "act_bytes": 2,
        "state_bytes": 4,
        "norm_bytes": 2,
        "tokens": tokens,
        "seqs": rows.seqs,
        "prefill_tokens": tokens * (phase == "prompts"),
        "prefill_seqs": rows.seqs * (phase == "prompts"),
        "prefill_squares": tokens * rows.length * (phase == "prompts"),
        "decode_seqs": rows.seqs * (phase == "decode"),
    }
    moved = sum(evaluate(getattr(op.work, field), env) for field in MEMORY_FIELDS)
    terms = Terms(evaluate(op.work.flops, env) / device.flops["bf16"], moved / device.memory_bandwidth, 0.0, 0.0)
    return op, {name: evaluate(value, env) for name, value in op.dims.items()}, terms


def errors(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Relative errors with one constant, and with the library's kernels."""
    engine, device = catalog.engine("vllm"), catalog.hardware(rows.device)
    op, dims, terms = layer(rows)
    shares = relative_reach(device, engine.kernels_from)
    before = assumed(engine, shares).answer(op, lambda: dims, terms)
    if rows.phase == "decode":
        source = delta_rules(engine, device, shares.memory)
        assert source is not None
        after = source.answer(op, lambda: dims, terms)
    else:
        rule = delta_rule(rows.backend, device)
        assert rule is not None
        after = np.maximum(predicted(rule, rows), terms.roofline)
    return before / rows.seconds - 1, after / rows.seconds - 1


def cells(off: np.ndarray) -> str:
    """``median / mean`` of errors, in per cent."""
    return f"{np.median(np.abs(off)) * 100:.1f} / {np.mean(np.abs(off)) * 100:.1f}"


def lines() -> Iterator[str]:
    """The table, row by row: GPUs of the fit first."""
    yield "| | kernels of | GPU | rows | one constant | now | … of 512 tokens or more: one constant | now |"
    yield "|---|---|---|---:|---:|---:|---:|---:|"
    groups = defaultdict(list)
    for rows in kept_rows():
        library = "FlashInfer" if rows.backend == "flashinfer" else "Triton"
        seen = rows.phase == "decode" or rows.device in FITTED_TO
        engine = rows.engine.replace("@", " ") if rows.phase == "prompts" else "both engines"
        groups[rows.phase != "prompts", library, not seen, rows.device, engine].append(rows)
    for (decode, library, unseen, device, engine), parts in sorted(groups.items()):
        before, after = (np.concatenate(some) for some in zip(*map(errors, parts), strict=True))
        large = np.concatenate([rows.seqs * rows.length for rows in parts]) >= LARGE
        if decode:
            beyond = np.concatenate([rows.seqs * rows.heads * STATE for rows in parts])
            large = beyond > catalog.hardware(device).cache
            before, after = before[large], after[large]
        words = ("decode" if decode else "prompts", f"{library}, {engine}")
        gpu = device + (", not in the fit" if unseen else "")
        some = ["–", "–"] if decode else [cells(before[large]), cells(after[large])]
        yield f"| {' | '.join((*words, gpu, f'{len(after):,}', cells(before), cells(after), *some))} |"


def report() -> str:
    """The table."""
    return "\n".join(lines())


def written() -> str:
    """The table as docs/accuracy/kernels.md has it."""
    return accuracy_page.stands(accuracy_page.read(), "delta-rule")


def main() -> None:
    text = report()
    if "--write" not in sys.argv:
        print(text)
        return
    accuracy_page.write(delta_rule=text)


if __name__ == "__main__":
    main()
