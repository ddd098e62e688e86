"""What stands before the servers of a plan: the router of each engine as it starts, given where the servers listen.

Requests go to the servers in turn, as a search simulates them; sessions may stay on their server. Names of policies are
those of vllm-project/router at 03e9af5 (README.md) and of SGLang's gateway, whose cache_aware keeps a session where its
prompt was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from .processes import PORT, SGLANG, TRTLLM, VLLM, Process

NGINX = "nginx"
_POLICIES = {  # our router -> the engine's policy
    VLLM: {"session_affinity": "consistent_hash", "prefix_aware": "cache_aware", "least_loaded": "power_of_two"},
    SGLANG: {"session_affinity": "cache_aware", "prefix_aware": "cache_aware", "least_loaded": "power_of_two"},
}
_NGINX = {  # a line of its upstream
    "session_affinity": "    hash $http_x_session_id consistent;\n",
    "prefix_aware": "    hash $http_x_session_id consistent;\n",
    "least_loaded": "    least_conn;\n",
}
_SESSION_HEADER = "every request says its session in the header X-Session-ID"
_STARTUP_SECONDS = "3600"  # weights of hundreds of GB take a while


class Backend(NamedTuple):
    """A server behind a router: ``Backend("prefill", "10.0.0.7:8000")``"""

    pool: str  # server, prefill, decode
    address: str  # host:port
    bootstrap_port: str = ""  # of SGLang's prefill servers, where it is not its default


def router_process(
    engine: str, backends: Sequence[Backend], port: int = PORT, router: str = "round_robin"
) -> Process | None:
    """The router of an engine; None before one server. ``router`` is its policy, as `simulate` calls it.

    ``router_process("vllm", [Backend("server", "a:8000"), Backend("server", "b:8000")]).argv  # ['vllm-router', …]``
    """
    if len(backends) < 2:
        return None
    if engine == TRTLLM:
        return _trtllm(backends, port, router)
    program, split, comment = {
        VLLM: (
            ["vllm-router"],
            "--vllm-pd-disaggregation",
            ("router: the package vllm-router, or the image vllm/vllm-router"),
        ),
        SGLANG: (["python3", "-m", "sglang_router.launch_router"], "--pd-disaggregation", ""),
    }[engine]
    if _is_split(backends):
        flags = [split]
        for backend in backends:
            flags += [f"--{backend.pool}", f"http://{backend.address}"]
            flags += [backend.bootstrap_port] if backend.bootstrap_port else []
    else:
        flags = ["--worker-urls", *(f"http://{backend.address}" for backend in backends)]
    policy = _POLICIES[engine].get(router, "round_robin")
    if policy == "consistent_hash":
        comment = f"{comment}; {_SESSION_HEADER}"
    flags += ["--policy", policy, "--worker-startup-timeout-secs", _STARTUP_SECONDS]
    argv = [*program, *flags, "--host", "0.0.0.0", "--port", str(port)]
    return Process(name="router", engine=engine, argv=argv, port=port, comment=comment)


def discovering(router: Process, selector: Mapping[str, str], namespace: str, port: int) -> Process:
    """A router that finds its servers in Kubernetes, by the labels of their pods, instead of being given them."""
    first, last = router.argv.index("--worker-urls"), router.argv.index("--policy")
    labels = [f"{key}={value}" for key, value in selector.items()]
    flags = ["--service-discovery", "--selector", *labels, "--service-discovery-port", str(port)]
    flags += ["--service-discovery-namespace", namespace]
    return msgspec.structs.replace(router, argv=[*router.argv[:first], *flags, *router.argv[last:]])


def _trtllm(backends: Sequence[Backend], port: int, router: str) -> Process:
    """TensorRT-LLM's own front of prefill and decode servers; it has none for servers alike, where nginx deals out."""
    if _is_split(backends):
        name = "disagg_config.yaml"
        argv = ["trtllm-serve", "disaggregated", "-c", name, "-t", _STARTUP_SECONDS]
        text = f"hostname: 0.0.0.0\nport: {port}\nbackend: pytorch\n"
        for key, pool in (("context_servers", "prefill"), ("generation_servers", "decode")):
            urls = [backend.address for backend in backends if backend.pool == pool]
            text += f"{key}:\n  num_instances: {len(urls)}\n  urls:\n" + "".join(f"  - {url}\n" for url in urls)
        return Process(name="router", engine=TRTLLM, argv=argv, files={name: text}, port=port)
    servers = "".join(f"    server {backend.address};\n" for backend in backends)
    text = (
        "events {}\n"
        "http {\n"
        f"  upstream servers {{\n{_NGINX.get(router, '')}{servers}  }}\n"
        f"  server {{\n    listen {port};\n    client_max_body_size 0;\n"
        "    location / {\n      proxy_pass http://servers;\n      proxy_http_version 1.1;\n"
        "      proxy_buffering off;\n      proxy_read_timeout 1h;\n    }\n  }\n}\n"
    )
    argv = ["nginx", "-g", "daemon off;", "-c", "$PWD/nginx.conf"]
    comment = "TensorRT-LLM has no router for identical servers; nginx balances them"
    comment += f"; {_SESSION_HEADER}" if "hash" in _NGINX.get(router, "") else ""
    return Process(name="router", engine=NGINX, argv=argv, files={"nginx.conf": text}, port=port, comment=comment)


def _is_split(backends: Sequence[Backend]) -> bool:
    return any(backend.pool == "prefill" for backend in backends)
