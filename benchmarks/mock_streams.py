"""Many open streams of the mock server: tokens that arrive, the server's share of a core, and what it is late by.

python benchmarks/mock_streams.py --streams 1000 --rate 5 --seconds 20

Every stream gets the same tokens a second: the mock's clock is slowed down until a full batch has that rate. The client
is a process of its own on the same machine, so where there are few cores it takes its share of them, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time

import inferometer

MODEL, GPU = "llama-3.1-8b", "h200"
INPUT_LEN = 64


def step_seconds(streams: int) -> float:
    """Seconds of a step in which every stream decodes."""
    clock = inferometer.StepClock(MODEL, GPU, max_num_seqs=max(streams, 256))
    return clock.step_ms(([], [INPUT_LEN + 64] * streams)) / 1e3


def cpu_seconds(pid: int) -> float:
    """Of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Stream(asyncio.Protocol):
    """One client: counts the events that come."""

    def __init__(self, request: bytes) -> None:
        self.request, self.events, self.moments = request, 0, []

    def connection_made(self, transport) -> None:
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"data: ")
        self.moments.append(time.perf_counter())


async def drive(port: int, streams: int, seconds: float, pid: int) -> dict[str, float]:
    """Open all streams, wait until all of them run, then count for so long."""
    loop = asyncio.get_running_loop()
    body = {"prompt": list(range(INPUT_LEN)), "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    clients = []
    for k in range(streams):
        data = json.dumps({**body, "seed": k}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        )
        _, client = await loop.create_connection(
            lambda d=data, h=head: Stream(f"{h}\r\n\r\n".encode() + d), "127.0.0.1", port
        )
        clients.append(client)
    while not all(client.events > 2 for client in clients):
        await asyncio.sleep(0.2)
    events, cpu, began = sum(c.events for c in clients), cpu_seconds(pid), time.perf_counter()
    for client in clients:
        client.moments.clear()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    gaps = [b - a for c in clients for a, b in zip(c.moments, c.moments[1:], strict=False)]
    gaps.sort()
    return {
        "events": (sum(c.events for c in clients) - events) / took,
        "core": (cpu_seconds(pid) - cpu) / took,
        "median_gap": gaps[len(gaps) // 2],
        "p99_gap": gaps[int(0.99 * len(gaps))],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=5.0, help="tokens per second of each stream")
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    speed = args.rate * step_seconds(args.streams)
    command = [
        sys.executable,
        "-m",
        "inferometer",
        "mock",
        MODEL,
        "--gpu",
        GPU,
        "--port",
        "0",
        "--speed",
        f"{speed:.4f}",
    ]
    command += ["--max-num-seqs", str(max(args.streams, 256)), "--max-num-batched-tokens", "16384"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        address = re.search(r":(\d+)/v1", server.stdout.readline())
        assert address, "the server did not start"
        result = asyncio.run(drive(int(address[1]), args.streams, args.seconds, server.pid))
    finally:
        server.terminate()
        server.wait()
    print(
        f"{args.streams:,} streams, {args.rate:g} tokens/s each for {args.seconds:g} s (load {os.getloadavg()[0]:.1f})"
    )
    print(f"events/s            {result['events']:8,.0f} of {args.streams * args.rate:,.0f}")
    print(f"server, of one core {result['core']:8.0%}, {result['core'] / result['events'] * 1e6:.0f} µs per event")
    print(f"gap between events  {result['median_gap'] * 1e3:8.0f} ms median, {result['p99_gap'] * 1e3:.0f} ms p99")


if __name__ == "__main__":
    main()
