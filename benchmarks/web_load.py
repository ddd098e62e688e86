"""Load on `inferometer web` over loopback: one user with a slider, then 200 at once; no two questions are the same.

    python benchmarks/web_load.py [--users 200] [--requests 2000]

Prints latency percentiles and errors; asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import signal
import statistics
import subprocess
import sys
import time


async def user(port: int, bodies: list[bytes], took: list[float], wrong: list[str]) -> None:
    """One connection that is kept, one question after another."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for body in bodies:
        started = time.perf_counter()
        head = f"POST /api/analyze HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer, re.I)
        body_bytes = await reader.readexactly(int(length[1])) if length else b""
        if not answer.startswith(b"HTTP/1.1 200") or b'"ttft_ms":' not in body_bytes:
            wrong.append((answer[:60] + body_bytes[:200]).decode())
        took.append(time.perf_counter() - started)
    writer.close()
    await writer.wait_closed()


def bodies(count: int, start: int) -> list[bytes]:
    """Plans that differ, most of them of one GPU."""
    models = itertools.cycle(
        [
            {"model": "llama-3.1-8b"},
            {"model": "qwen3-8b"},
            {"model": "llama-3.1-70b", "tensor_parallel_size": 4, "quantization": "fp8"},
            {"model": "qwen3-30b-a3b"},
        ]
    )
    return [
        json.dumps({**next(models), "gpu": "h200", "batch_size": 1 + n % 64, "input_len": 100 + start + n}).encode()
        for n in range(count)
    ]


async def load(port: int, users: int, requests: int, start: int) -> None:
    took: list[float] = []
    wrong: list[str] = []
    all_of_them = bodies(requests, start)
    began = time.perf_counter()
    await asyncio.gather(*(user(port, all_of_them[n::users], took, wrong) for n in range(users)))
    whole = time.perf_counter() - began
    at = statistics.quantiles(took, n=100)
    marks = {"p50": at[49], "p90": at[89], "p99": at[98], "max": max(took)}
    latency = "  ".join(f"{word} {seconds * 1e3:.0f}" for word, seconds in marks.items())
    print(
        f"{users:>4} at once  {len(took):>6,} analyses in {whole:6.2f} s  {len(took) / whole:7.1f}/s  "
        f"{len(wrong)} errors  ms: {latency}"
    )
    for line in wrong[:3]:
        print("  ", line)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2000)
    given = parser.parse_args()
    command = [sys.executable, "-m", "inferometer", "web", "--port", "0", "--log-format", "off"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        said = re.search(r":(\d+)/", server.stdout.readline())
        assert said, "the server did not say where it is"
        port = int(said[1])
        time.sleep(3)  # the catalogue is read
        for users, requests, start in ((1, 100, 0), (10, 300, 10_000), (given.users, given.requests, 30_000)):
            asyncio.run(load(port, users, requests, start))
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


if __name__ == "__main__":
    main()
