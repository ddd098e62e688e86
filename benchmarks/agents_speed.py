"""How fast sessions of agents are simulated, and in how much memory; the generator included.

python benchmarks/agents_speed.py               # 100,000 turns, on one replica and on four with session_affinity
python benchmarks/agents_speed.py 1000000       # a million
python benchmarks/agents_speed.py 1000000 kv_offloading_size=64
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

AGENT = "coding-agent,turns=50,context_limit=100000,spawn_share=0,tool_wait=lognormal:mean=20,std=40,max=600"
RATE = 0.006  # sessions a second for each replica: about seven at a time


def run(turns: int, replicas: int, *more: str) -> None:
    """So many turns on some H200; prints seconds of the clock and of all processors, and the memory of a process."""
    from inferometer.serving.simulate import simulate

    given = dict(one.split("=") for one in more)
    options = {"data_parallel_size": replicas, "router": "session_affinity", **{k: float(v) for k, v in given.items()}}
    begun = time.perf_counter()
    outcome = simulate(
        "llama-3.1-8b",
        gpu="h200",
        agents=AGENT,
        num_sessions=turns // 50,
        request_rate=RATE * replicas,
        seed=1,
        **options,  # type: ignore[arg-type]
    )
    seconds = time.perf_counter() - begun
    busy, peaks = 0.0, []
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        use = resource.getrusage(who)
        busy += use.ru_utime + use.ru_stime
        peaks.append(f"{use.ru_maxrss / 1e3:,.0f}")
    print(
        f"{turns:,} turns, {replicas} x h200 {' '.join(more)}: {seconds:.1f} s, {busy:.1f} s of processors "
        f"({turns / busy:,.0f} turns a second), at most {peaks[0]} MB here and {peaks[1]} MB in a worker; {outcome!r}",
        flush=True,
    )


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--one":
        run(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
        return
    turns, *more = sys.argv[1:] or ("100000",)
    for replicas in (1, 4):
        begin = [sys.executable, __file__, "--one", turns, str(replicas)]
        subprocess.run([*begin, *more], check=True)  # memory of each by itself


if __name__ == "__main__":
    main()
