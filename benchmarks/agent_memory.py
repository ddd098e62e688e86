"""How much CPU memory a fleet of coding agents needs: TTFT, cost and hits over the size of the tier below the GPU.

python benchmarks/agent_memory.py           # a table, and docs/img/agent-memory.png; a minute
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image

from inferometer.serving.simulate import simulate
from inferometer.views.plots.canvas import page, picture, style
from inferometer.views.plots.palette import BLUE, GREEN, ORANGE

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "img" / "agent-memory.png"
SIZES = (0, 16, 32, 48, 64, 80, 96, 128)  # GiB
FLEETS = {16: BLUE, 24: ORANGE, 32: GREEN}  # sessions at once
AGENT = "coding-agent,turns=24,context_limit=100000"


def run(sessions: int, size: int) -> dict[str, Any]:
    """The figures of one fleet with so many GiB of CPU memory."""
    tier = {"kv_offloading_size": float(size)} if size else {}
    outcome = simulate(
        "qwen3-coder-30b-a3b",
        gpu="h100-sxm",
        quantization="fp8",
        agents=AGENT,
        num_sessions=2 * sessions,
        concurrent_sessions=sessions,
        max_idle=120.0,
        **tier,  # type: ignore[arg-type]
    )
    return outcome.summary()


def main() -> None:
    results = {sessions: [run(sessions, size) for size in SIZES] for sessions in FLEETS}
    print("| CPU memory | sessions at once | TTFT, p90 | from the cache | sessions per hour | $ per session |")
    print("|--:|--:|--:|--:|--:|--:|")
    for sessions, figures in results.items():
        for size, one in zip(SIZES, figures, strict=True):
            by = one["sessions"]
            print(
                f"| {size} GiB | {sessions} | {one['p90_ttft_ms'] / 1e3:.2f} s | {by['cached_share']:.1%} "
                f"| {by['sessions_per_hour']:.0f} | {by['cost_per_session']:.3f} |"
            )
    draw(results)


def draw(results: dict[int, list[dict[str, Any]]]) -> None:
    """Write the picture."""
    panels = (
        ("TTFT, p90, s", lambda one: one["p90_ttft_ms"] / 1e3),
        ("prompt tokens from the cache, %", lambda one: 100 * one["sessions"]["cached_share"]),
        ("$ per session", lambda one: one["sessions"]["cost_per_session"]),
    )
    with style():
        subtitle = "Qwen3-Coder-30B-A3B, fp8, on one H100; 24 turns a session, prompts up to 100,000 tokens"
        figure = page(10.2, 4.2, "CPU memory for a fleet of coding agents", subtitle)
        for place, (label, value) in enumerate(panels):
            axes = figure.add_axes((0.065 + 0.325 * place, 0.15, 0.265, 0.58))
            for sessions, color in FLEETS.items():
                heights = [value(one) for one in results[sessions]]
                axes.plot(SIZES, heights, "o-", color=color, markersize=3.5, label=f"{sessions} sessions at once")
            axes.set_xlabel("CPU memory for the KV cache, GiB")
            axes.set_title(label, fontsize=10.5, loc="left")
            axes.set_ylim(bottom=0)
            if place == 1:
                axes.legend(frameon=False, fontsize=8.5, loc="lower right")
        few_colors = Image.open(io.BytesIO(picture(figure))).convert("RGB").quantize(64)
        few_colors.save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
