"""What is started for a plan, as plain data: processes with their arguments, environment and files."""

from __future__ import annotations

import msgspec

VLLM, SGLANG, TRTLLM, BENCH = "vllm", "sglang", "trtllm", "bench"
SERVERS = (VLLM, SGLANG, TRTLLM)
PORT = 8000


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A program with its arguments; `replicas` of it are started, each on `gpus` GPUs of `nodes` nodes.

    ``Process(name="server", engine="vllm", argv=["vllm", "serve", "$MODEL", "--port", "$PORT"], gpus=1)``

    What only the machine knows is a variable of the shell: ``$MODEL``, ``$PORT``, ``$HOST_IP`` (of this node),
    ``$HEAD_IP`` (of the replica's first node) and ``$NODE_RANK`` (0 on that one); for a router, ``$SERVER_0``,
    ``$PREFILL_0``, ``$DECODE_0`` … are the host:port of the first server of each pool, and so on.
    """

    name: str  # server, prefill, decode, router, bench
    engine: str  # vllm, sglang, trtllm
    argv: list[str]
    env: dict[str, str] = {}
    files: dict[str, str] = {}  # name -> text, in the folder that it is started in
    replicas: int = 1
    nodes: int = 1  # of one replica
    gpus: int = 0  # of one replica
    gpus_per_node: int = 0  # of one replica on each of its nodes
    port: int = PORT  # that the first node listens on
    headless_argv: list[str] | None = None  # what nodes after the first run; None: as the first; []: nothing
    comment: str = ""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """All that one engine needs to run a plan: ``launch.processes[0].argv  # ['vllm', 'serve', '$MODEL', …]``"""

    engine: str
    version: str = ""  # of the engine; "" = the newest that is known
    model: str  # what $MODEL is: a Hugging Face id or a path
    vendor: str = "NVIDIA"  # of the devices
    architecture: str = ""
    processes: list[Process]  # servers by pool, then the router
    bench: Process
    gpus_per_node: int = 8  # of a machine
    notes: list[str] = []  # what to do before
    refusals: list[str] = []  # why this engine cannot run the plan; then there are no processes
