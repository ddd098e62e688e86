"""A long load on `inferometer web`: mixed traffic of many clients at once, with a worker killed every few seconds.

    python tools/soak.py [--seconds 1200] [--clients 50] [--kill-every 10] [--seed 1]

Counts by kind and outcome, latencies, memory over time, files that are left. Fails (exit code 1) where a request is
neither answered nor refused with a sentence, where memory grows, where a file is left, or where the server does not end
well. Linux alone: processes and their memory are read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

MODELS = ("llama-3.1-8b", "qwen3-8b", "qwen3-30b-a3b", "llama-3.1-70b", "deepseek-v3", "gpt-oss-120b")
PATIENCE = 180.0  # s that a client waits for an answer
REFUSED = (400, 401, 403, 404, 408, 413, 415, 422, 429, 503)  # each with a sentence
CACHE = 64e6  # bytes of answers that the server keeps
CONFIG = {
    "model_type": "granite",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 49155,
}


class Broken(Exception):
    """A request that was neither answered nor refused with a sentence."""


class Soak:
    """One server under load, and what came of it."""

    def __init__(self, port: int, process: int, seed: int) -> None:
        self.port, self.process, self.random = port, process, random.Random(seed)
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.broken: list[str] = []
        self.memory: list[tuple[float, float, float]] = []  # time, bytes of the server, bytes of its workers
        self.killed = 0

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of one request on a connection of its own."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        try:
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**26)
                writer.write(head.encode() + data)
                answer = await reader.read()
                writer.close()
        except (OSError, TimeoutError) as error:
            raise Broken(f"{method} {path}: {type(error).__name__} {error}") from None
        top, _, content = answer.partition(b"\r\n\r\n")
        try:
            status = int(top.split()[1])
            return status, content.decode() if path == "/metrics" else json.loads(content)
        except (ValueError, IndexError):
            raise Broken(f"{method} {path}: {answer[:200]!r}") from None

    async def question(self, path: str, body: Any) -> str:
        """What became of a short question: ``answered``, or ``refused 429``."""
        return outcome(path, *await self.ask("POST", path, body))

    async def job(self, path: str, body: Any, cancel: bool = False) -> str:
        """What became of a job."""
        status, begun = await self.ask("POST", path, body)
        if status != 202:
            return outcome(path, status, begun)
        place = f"/api/jobs/{begun['job']}"
        if cancel:
            await asyncio.sleep(self.random.random() * 2)
            status, now = await self.ask("DELETE", place)
            if status != 200 or now["state"] in ("queued", "running"):
                raise Broken(f"DELETE {place}: {status} {now}")
            return str(now["state"])
        deadline = time.monotonic() + 10 * PATIENCE  # a queue of eight before it
        while time.monotonic() < deadline:
            status, now = await self.ask("GET", place)
            if status == 404:
                return "forgotten"  # only so many are kept, and others ended since
            if now["state"] == "done":
                return "answered"
            if now["state"] == "failed":
                return outcome(path, 422, now)
            await asyncio.sleep(0.5)
        raise Broken(f"{place} is {now['state']} for ever")

    # -------------------------------------------------------------- kinds of traffic

    def plan(self) -> dict[str, Any]:
        pick = self.random
        return {
            "model": pick.choice(MODELS),
            "gpu": pick.choice(("h200", "h100-sxm", "b200")),
            "tensor_parallel_size": pick.choice((1, 2, 4, 8)),
            "batch_size": pick.randint(1, 256),
            "input_len": pick.randint(16, 8000),
        }

    def kinds(self) -> dict[str, tuple[int, Callable[[], Awaitable[str]]]]:
        """Every kind with its share of the traffic."""
        pick = self.random
        rows = "".join(
            f"{pick.randint(1, 2000)},{pick.randint(1, 200)},{i / 8}\n" for i in range(pick.randint(5, 2000))
        )
        trace = {"name": "chat.csv", "text": f"input_tokens,output_tokens,arrival_s\n{rows}"}
        small = {"model": "llama-3.1-8b", "gpu": "h200"}
        traffic = {
            "num_prompts": pick.randint(10, 3000),
            "request_rate": pick.randint(1, 30),
            "seed": pick.randint(0, 99),
        }
        axes = {
            "batch_size": "1:256:x2",
            "input_len": f"{pick.randint(1, 99)}:8000:x2",
            "quantization": ["bf16", "fp8"],
        }
        limits = {"num_gpus": 2, "goodput": "ttft:900,tpot:40", "finalists": 1, "output_len": pick.randint(50, 300)}
        return {
            "analyze": (30, lambda: self.question("/api/analyze", self.plan())),
            "explain": (5, lambda: self.question("/api/explain", {"plan": self.plan(), "op": "lm_head"})),
            "sweep": (8, lambda: self.question("/api/sweep", {"plan": small, "axes": axes})),
            "sensitivity": (4, lambda: self.question("/api/sensitivity", {"plan": self.plan()})),
            "config": (5, lambda: self.question("/api/analyze", {**self.plan(), "model": "mine", "config": CONFIG})),
            "mistake": (5, lambda: self.question("/api/analyze", {"gpu": "../h200", "batch_size": pick.randint(0, 9)})),
            "simulate": (4, lambda: self.job("/api/simulate", {"plan": small, "traffic": traffic})),
            "upload": (4, lambda: self.job("/api/simulate", {"plan": small, "trace": trace})),
            "search": (2, lambda: self.job("/api/search", {"plan": small, **limits})),
            "cancel": (4, lambda: self.job("/api/simulate", {"plan": small, "trace": trace}, cancel=True)),
            "broken off": (3, lambda: self.broken_off(trace)),
        }

    async def broken_off(self, trace: Any) -> str:
        """A client that goes in the middle of its request."""
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            head = f"POST /api/simulate HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: 99999999\r\n\r\n{json.dumps(trace)}".encode())
            await asyncio.sleep(self.random.random())
            writer.transport.abort()
        return "went away"

    # -------------------------------------------------------------- who does what

    async def client(self, end: float) -> None:
        while time.monotonic() < end:
            kinds = self.kinds()
            (kind,) = self.random.choices([*kinds], [share for share, _ in kinds.values()])
            started = time.monotonic()
            try:
                became = await kinds[kind][1]()
            except Broken as error:
                became = "BROKEN"
                self.broken.append(f"{kind}: {error}")
            self.outcomes[kind, became] += 1
            self.seconds[kind].append(time.monotonic() - started)
            await asyncio.sleep(self.random.random() * 0.5)

    async def kill_workers(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            workers = grandchildren(self.process)
            if workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.random.choice(workers), signal.SIGKILL)
                    self.killed += 1

    async def watch_memory(self, every: float = 5.0) -> None:
        began = time.monotonic()
        while True:
            with contextlib.suppress(Broken):
                _, text = await self.ask("GET", "/metrics")
                sizes = [
                    float(re.search(rf"^{name} (\S+)$", text, re.M)[1])  # type: ignore[index]
                    for name in ("process_resident_memory_bytes", "inferometer_workers_resident_memory_bytes")
                ]
                self.memory.append((time.monotonic() - began, *sizes))  # type: ignore[arg-type]
            await asyncio.sleep(every)

    async def run(self, seconds: float, clients: int, kill_every: float) -> None:
        end = time.monotonic() + seconds
        others = [asyncio.create_task(self.kill_workers(kill_every)), asyncio.create_task(self.watch_memory())]
        await asyncio.gather(*(self.client(end) for _ in range(clients)))
        for task in others:
            task.cancel()

    # -------------------------------------------------------------- what came of it

    def report(self) -> list[str]:
        """Print it all; what is wrong."""
        print(f"{'kind':<12} {'number':>7}  {'p50 s':>7} {'p99 s':>7}  outcomes")
        for kind, seconds in sorted(self.seconds.items()):
            at = statistics.quantiles(seconds, n=100) if len(seconds) > 1 else seconds * 100
            outcomes = ", ".join(f"{n:,} {what}" for (k, what), n in sorted(self.outcomes.items()) if k == kind)
            print(f"{kind:<12} {len(seconds):>7,}  {at[49]:>7.2f} {at[98]:>7.2f}  {outcomes}")
        print(f"workers killed: {self.killed}")
        shown = self.memory[:: max(1, len(self.memory) // 10)]
        print("MB of server + workers: " + "  ".join(f"{t:.0f} s {a / 1e6:.0f} + {b / 1e6:.0f}" for t, a, b in shown))
        wrong = [*self.broken[:10], *([f"… {len(self.broken) - 10} more"] if len(self.broken) > 10 else [])]
        quarter = len(self.memory) // 4
        if quarter:
            early, late = (
                statistics.median(a for _, a, _ in part)
                for part in (self.memory[quarter : 2 * quarter], self.memory[-quarter:])
            )
            if late > early * 1.1 + CACHE:
                wrong.append(f"memory of the server grew from {early / 1e6:.0f} to {late / 1e6:.0f} MB")
        return wrong


def outcome(path: str, status: int, answer: Any) -> str:
    """``answered``, or ``refused 429``; a refusal without a sentence is broken."""
    if status in (200, 202):
        return "answered"
    sentence = answer.get("error") if isinstance(answer, dict) else None
    if status not in REFUSED or not isinstance(sentence, str) or " " not in sentence:
        raise Broken(f"{path}: {status} {str(answer)[:200]}")
    return f"refused {status}"


def grandchildren(process: int) -> list[int]:
    """Processes whose parent is a child of a process: workers, below the one that starts them."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return [one for one, parent in parents.items() if parents.get(parent) == process]


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--kill-every", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as place:
        command = [sys.executable, "-m", "inferometer", "web", "--port", "0", "--log-format", "off"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": place})
        assert server.stdout is not None
        said = re.search(r":(\d+)/", server.stdout.readline())
        assert said, "the server did not say where it is"
        soak = Soak(int(said[1]), server.pid, given.seed)
        asyncio.run(soak.run(given.seconds, given.clients, given.kill_every))
        wrong = soak.report()
        files = [path for path in Path(place).rglob("*") if path.is_file() and path.name != "lock"]
        server.send_signal(signal.SIGTERM)
        try:
            code = server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            code = server.wait()
        left = [str(path.relative_to(place)) for path in Path(place).rglob("*")]
        print(f"files: {len(files)} at the end of the load, {len(left)} after the server's end; exit code {code}")
        wrong += [f"left behind: {name}" for name in left[:5]] + ([f"exit code {code}"] if code else [])
    for line in wrong:
        print(f"FAILED: {line}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
