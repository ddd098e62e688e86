"""How long a search for training layouts takes: ``python benchmarks/training_search.py``

Three searches over 1,024 H100, each in a process of its own: seconds of the search and of its stages without Python's
start, CPU seconds of the whole process, how many layouts there are, and how many were estimated.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

STEPS = (
    ("llama-3.1-70b", 8192, 1024),
    ("qwen3-30b-a3b", 4096, 2048),
    ("deepseek-v3", 4096, 4096),
)
GPUS = ("--train", "--gpu", "h100-sxm", "--num-gpus", "1024", "--json")


def main() -> None:
    """A line per model."""
    print(
        f"{'model':16}{'seconds':>9}{'memory':>9}{'estimate':>10}{'CPU':>7}{'layouts':>9}{'too large':>11}"
        f"{'estimated':>11}  winner"
    )
    before = 0.0
    for model, seq_len, batch in STEPS:
        step = ("--seq-len", str(seq_len), "--global-batch-size", str(batch))
        command = [sys.executable, "-m", "inferometer", "search", model, *GPUS, *step]
        result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu, before = used.ru_utime + used.ru_stime - before, used.ru_utime + used.ru_stime
        took, counts = result["seconds"], result["counts"]
        print(
            f"{model:16}{took['total']:>9.2f}{took['memory']:>9.2f}{took['estimate']:>10.2f}{cpu:>7.2f}"
            f"{counts['layouts']:>9,}{counts['layouts_too_large']:>11,}{counts['layouts_estimated']:>11,}"
            f"  {result['winner']['label']}"
        )


if __name__ == "__main__":
    main()
