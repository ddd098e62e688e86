"""How fast sessions of agents are simulated, and in how much memory; one process, the generator included.

python benchmarks/agents_speed.py               # 20,000 and 100,000 turns
python benchmarks/agents_speed.py 1000000       # a million
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

AGENT = "coding-agent,turns=50,context_limit=100000,spawn_share=0,tool_wait=lognormal:mean=20,std=40,max=600"


def run(turns: int) -> None:
    """So many turns on one H200; prints the seconds of the processor, and the memory."""
    from inferometer.serving.simulate import simulate

    begun = time.process_time()
    outcome = simulate("llama-3.1-8b", gpu="h200", agents=AGENT, num_sessions=turns // 50, request_rate=0.006, seed=1)
    seconds = time.process_time() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    rate = turns / seconds
    print(f"{turns:,} turns in {seconds:.1f} s of one core ({rate:,.0f} a second), {memory:,.0f} MB; {outcome!r}")


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--one":
        run(int(sys.argv[2]))
        return
    for turns in map(int, sys.argv[1:] or ("20000", "100000")):
        subprocess.run([sys.executable, __file__, "--one", str(turns)], check=True)  # memory of each by itself


if __name__ == "__main__":
    main()
