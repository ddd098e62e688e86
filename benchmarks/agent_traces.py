"""Prefix reuse of public traces of sessions, against what their publications state, and how fast they are read.

python benchmarks/agent_traces.py mooncake FILE          # FAST25-release/traces of kvcache-ai/Mooncake
python benchmarks/agent_traces.py weka FOLDER            # traces of callanjfox/kv-cache-tester

Stated: Mooncake, FAST'25, table 2: cache ratios of 40% (conversation) and 66% (synthetic), of all tokens in whole
blocks. kv-cache-tester, README.md at 94f6046, "conversation-only": 93% as the mean over 739 traces, quartiles of 92, 96
and 97%; the share of a session's blocks that its own requests had before.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from inferometer.serving.session_metrics import reuse_by_request
from inferometer.serving.trace import read_trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("mooncake", "weka"))
    parser.add_argument("path")
    given = parser.parse_args()
    begun = time.perf_counter()
    trace = read_trace(given.path)
    read = time.perf_counter() - begun
    hits, blocks = reuse_by_request(trace)
    print(f"{len(trace):,} requests read in {read:.1f} s; {hits.sum() / blocks.sum():.2%} of all prompts' blocks")
    if trace.sessions is not None:
        which = trace.sessions.session
        shares = np.bincount(which, hits) / np.bincount(which, blocks)
        quartiles = ", ".join(f"{share:.1%}" for share in np.percentile(shares, (25, 50, 75)))
        print(f"{len(trace.sessions):,} sessions: mean {shares.mean():.1%}, quartiles {quartiles}")


if __name__ == "__main__":
    main()
