"""Files that deploy a plan, read back: they have the plan's GPUs, start its processes and find each other."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from helpers.launch_plans import launches_of, pool_of
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.search.launch import manifests
from inferometer.search.launch.compose import placed
from inferometer.search.launch.manifests import yaml_text
from inferometer.search.launch.processes import SERVERS, Launch, Process
from inferometer.search.search_result import PoolSpec

GPU = "nvidia.com/gpu"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
COMPOSE = """\
# owner/model with vllm: docker compose -f compose.yaml up
# Set in the environment to change them: MODEL, EXTRA_ARGS (for every server), IMAGE, HF_TOKEN, HF_CACHE, PORT.
name: vllm
services:
  server-0:
    image: "${IMAGE:-vllm/vllm-openai:v0.28.0}"
    restart: unless-stopped
    entrypoint:
    - sh
    - -c
    - "exec \\"$$0\\" \\"$$@\\" $$EXTRA_ARGS"
    command:
    - vllm
    - serve
    - "${MODEL:-owner/model}"
    - --tensor-parallel-size
    - "2"
    - --port
    - "8000"
    environment:
      HF_TOKEN: "${HF_TOKEN:-}"
      HF_HOME: /cache
      EXTRA_ARGS: "${EXTRA_ARGS:-}"
    volumes:
    - "${HF_CACHE:-huggingface}:/cache"
    ipc: host
    ulimits:
      memlock: -1
      stack: 67108864
    deploy:
      resources:
        reservations:
          devices:
          - driver: nvidia
            device_ids:
            - "0"
            - "1"
            capabilities:
            - gpu
    healthcheck:
      test:
      - CMD-SHELL
      - "curl -fsS http://localhost:8000/health || exit 1"
      interval: "30s"
      timeout: "10s"
      retries: 6
      start_period: "3600s"
    ports:
    - "${PORT:-8000}:8000"
volumes:
  huggingface: {}
"""


def _load_all(text: str) -> list[Any]:
    return [*yaml.load_all(text, Loader=_LOADER)]


def _load(text: str) -> Any:
    (document,) = _load_all(text)
    return document


def _dump(data: Any) -> str:
    return str(yaml.dump(data, Dumper=_DUMPER, width=10**6))


PLANS = {  # the checkpoint is in bf16, which every engine serves as it is
    "one GPU": [pool_of()],
    "three of two GPUs": [pool_of(tp=2, replicas=3)],
    "more than a machine": [pool_of(tp=4, replicas=5)],
    "attention-DP on a node": [pool_of(dp=8, ep=True)],
    "pipeline over two nodes": [pool_of(tp=8, pp=2, replicas=2)],
    "attention-DP over two nodes": [pool_of(dp=16, ep=True)],
    "attention-DP over four nodes": [pool_of(dp=32, ep=True)],
    "prefill and decode": [pool_of("prefill", replicas=3), pool_of("decode", tp=2, replicas=2)],
    "prefill and wide decode": [pool_of("prefill", tp=4, replicas=3), pool_of("decode", dp=16, ep=True)],
}


def _launches(*pools: PoolSpec, **changes: Any) -> dict[str, Launch]:
    own = {"quantization": "bf16", "kv_cache_dtype": "bf16"}
    return launches_of(*(msgspec.structs.replace(pool, **own) for pool in pools), **changes)


@pytest.fixture(
    params=[(plan, engine) for plan in PLANS for engine in SERVERS], ids=lambda pair: f"{pair[0]}, {pair[1]}"
)
def launch(request: pytest.FixtureRequest) -> Launch:
    plan, engine = request.param
    return _launches(*PLANS[plan])[engine]


def _documents(launch: Launch, folder: str) -> list[dict[str, Any]]:
    texts = [text for path, text in manifests.files(launch).items() if path.startswith(folder) and "values" not in path]
    return [document for text in texts for document in _load_all(text)]


def _servers(launch: Launch) -> dict[str, Process]:
    return {process.name: process for process in launch.processes if process.gpus}


def _templates(document: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Pod templates with the number of pods of each."""
    spec = document.get("spec", {})
    if "leaderWorkerTemplate" in spec:
        group = spec["leaderWorkerTemplate"]
        yield spec["replicas"], group["leaderTemplate"]
        yield spec["replicas"] * (group["size"] - 1), group["workerTemplate"]
    elif "template" in spec:
        yield spec["replicas"], spec["template"]


def _gpus(pods: int, spec: dict[str, Any]) -> int:
    amounts = [container.get("resources", {}).get("limits", {}).get(GPU, "0") for container in spec["containers"]]
    return pods * sum(map(int, amounts))


def _total(launch: Launch) -> int:
    return sum(process.gpus * process.replicas for process in launch.processes)


def _plain(args: list[str]) -> list[str]:
    """What a command line has in every form of it: flags and figures; addresses, ranks and files differ."""
    return [part for part in args if not re.search(r"[$/]|\.yaml$|^\d{4}$", part)]


# ------------------------------------------------------------------ what all files must have


def test_compose_has_the_gpus_and_commands_of_the_plan(launch: Launch) -> None:
    files = {path: _load(text) for path, text in manifests.files(launch).items() if path.startswith("compose")}
    if not files:
        assert launch.engine == "trtllm" and (not launch.processes or any(p.nodes > 1 for p in launch.processes))
        return
    used = []
    for document in files.values():
        here = []
        for name, service in document["services"].items():
            if name != "router":
                device = service["deploy"]["resources"]["reservations"]["devices"][0]
                here += device["device_ids"]
                process = _servers(launch)[name.split("-")[0]]
                missing = [part for part in _plain(process.argv) if part not in service["command"]]
                assert not missing, f"{missing} of {name}"
        assert len(set(here)) == len(here) <= 8  # no GPU twice
        used += here
        text = _dump(document)
        for source in re.findall(r"source: (\S+)", text):
            assert source in document["configs"]
    assert len(used) == _total(launch)
    machines = [part.machine for part in placed(launch)]
    assert len(files) == max(machines) + 1


def test_compose_services_find_each_other(launch: Launch) -> None:
    files = [_load(text) for path, text in manifests.files(launch).items() if path.startswith("compose")]
    listening = set()
    for machine, document in enumerate(files):
        for name, service in document["services"].items():
            if "healthcheck" in service and name != "router":
                port = re.search(r":(\d+)/health", service["healthcheck"]["test"][1])
                assert port and port[1] in service["command"]
                host = name if len(files) == 1 else f"${{MACHINE_{machine}:?the IP address of machine {machine}}}"
                assert (host, port[1]) not in listening, "two servers listen on one port"
                listening.add((host, port[1]))
            assert ("network_mode" in service) == (len(files) > 1)
    if files and "router" in files[0]["services"]:
        text = _dump(files[0]["services"]["router"]) + _dump(files[0].get("configs", {}))
        assert all(f"{host}:{port}" in text for host, port in listening)
    else:
        assert len(listening) <= 1


def test_kubernetes_has_the_gpus_and_commands_of_the_plan(launch: Launch) -> None:
    documents = _documents(launch, "kubernetes/")
    pools = {document["metadata"]["name"]: document for document in documents if [*_templates(document)]}
    if not pools:
        assert launch.engine == "trtllm"
        return
    for process in launch.processes:
        document = pools[f"{launch.engine}-{process.name}"]
        (pods, leader), *workers = _templates(document)
        assert pods == process.replicas
        spec = leader["spec"]["containers"][0]
        arguments = [*spec["command"], *spec["args"]]
        expected = (
            process.argv[: process.argv.index("--worker-urls")] if "--worker-urls" in process.argv else process.argv
        )
        assert not [part for part in _plain(expected) if part not in arguments and part not in spec["command"][-1]]
        if process.gpus:
            assert spec["args"][spec["args"].index("--port") + 1] == str(spec["ports"][0]["containerPort"])
            assert "$(MODEL)" in spec["args"] and "$EXTRA_ARGS" in spec["command"][-1]
            assert spec["startupProbe"]["failureThreshold"] * spec["startupProbe"]["periodSeconds"] >= 1800
        if process.nodes > 1:
            assert document["kind"] == "LeaderWorkerSet"
            assert document["spec"]["leaderWorkerTemplate"]["size"] == process.nodes
            worker = workers[0][1]["spec"]["containers"][0]
            assert "$(LWS_LEADER_ADDRESS)" in _dump(worker) and "LWS_WORKER_INDEX" in _dump(worker)
            assert not {"startupProbe", "readinessProbe", "livenessProbe"} & worker.keys()
            assert ("--headless" in worker["args"]) == (launch.engine == "vllm")
    assert sum(_gpus(pods, pod["spec"]) for d in documents for pods, pod in _templates(d)) == _total(launch)


def test_kubernetes_selectors_and_names_meet(launch: Launch) -> None:
    documents = _documents(launch, "kubernetes/")
    names = {(d["kind"], d["metadata"]["name"]) for d in documents if "metadata" in d}
    pods = [template["metadata"]["labels"] for d in documents for _, template in _templates(d)]
    for document in documents:
        spec = document.get("spec", {})
        selector = spec.get("selector", {})
        for wanted in (selector.get("matchLabels"), selector if document["kind"] == "Service" else None):
            chosen = [labels for labels in pods if wanted and wanted.items() <= labels.items()]
            assert wanted is None or len(chosen) == 1, f"{document['kind']} must choose the pods of one template"
        for _, template in _templates(document):
            text = _dump(template)
            for kind, pattern in (
                ("ConfigMap", r"configMap(?:Ref)?:\n\s+name: (\S+)"),
                ("PersistentVolumeClaim", r"claimName: (\S+)"),
            ):
                assert all((kind, name) in names for name in re.findall(pattern, text))
            for name in re.findall(r"serviceAccountName: (\S+)", text):
                assert {("ServiceAccount", name), ("Role", name), ("RoleBinding", name)} <= names
    resources = [d["resources"] for d in documents if d["kind"] == "Kustomization"]
    paths = {path.removeprefix("kubernetes/") for path in manifests.files(launch) if path.startswith("kubernetes/")}
    assert not documents or {*resources[0], "kustomization.yaml"} == paths


def test_routers_of_kubernetes_reach_every_server(launch: Launch) -> None:
    documents = _documents(launch, "kubernetes/")
    router = [d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"].endswith("-router")]
    servers = sum(process.replicas for process in _servers(launch).values())
    assert bool(router) == (servers > 1 and bool(documents))
    if not router:
        return
    container = router[0]["spec"]["template"]["spec"]["containers"][0]
    if "--selector" in container["args"]:
        start = container["args"].index("--selector") + 1
        labels = dict(part.split("=") for part in container["args"][start:] if part.startswith("app.kubernetes.io"))
        chosen = [t for d in documents for _, t in _templates(d) if labels.items() <= t["metadata"]["labels"].items()]
        assert len(chosen) == 1 and GPU in _dump(chosen[0])
        return
    files = [d["data"] for d in documents if d.get("metadata", {}).get("name") == f"{launch.engine}-router-files"]
    text = " ".join(container["args"]) + _dump(files)
    services = {d["metadata"]["name"] for d in documents if d["kind"] in ("Service", "LeaderWorkerSet")}
    for name, process in _servers(launch).items():
        pool = f"{launch.engine}-{name}"
        assert pool in services  # a headless Service, or the one that a LeaderWorkerSet makes
        assert all(f"{pool}-{n}.{pool}:8000" in text for n in range(process.replicas))


def test_dynamo_has_a_component_for_each_pool(launch: Launch) -> None:
    graphs = [d for d in _documents(launch, "dynamo/") if d["kind"] == "DynamoGraphDeployment"]
    assert len(graphs) == bool(launch.processes)
    for graph in graphs:
        frontend, *components = graph["spec"]["components"]
        assert frontend["type"] == "frontend" and graph["spec"]["backendFramework"] == launch.engine
        total = 0
        assert len(graph["metadata"]["name"]) + len("prefill" + "prefill-ldr") <= 45
        for component, process in zip(components, _servers(launch).values(), strict=True):
            assert component["type"] == {"server": "worker"}.get(process.name, process.name)
            assert component.get("multinode", {"nodeCount": 1})["nodeCount"] == process.nodes
            container = component["podTemplate"]["spec"]["containers"][0]
            total += _gpus(component["replicas"] * process.nodes, component["podTemplate"]["spec"])
            args = container["args"]
            assert (
                args[:2] in (["--model", "owner/model"], ["--model-path", "owner/model"])
                and args.count("owner/model") == 1
            )
            assert not {"--port", "--node-rank", "--nnodes", "--headless", "--dist-init-addr", "--tp_size"} & {*args}
            assert ("--disaggregation-mode" in args) == (process.name != "server")
            assert "$" not in " ".join(args)
        assert total == _total(launch)


def test_llm_d_has_the_pools(launch: Launch) -> None:
    files = manifests.files(launch)
    if launch.engine == "trtllm":
        assert not any(path.startswith("llm-d") for path in files)
        return
    values = _load(files["llm-d/modelservice.values.yaml"])
    router = _load(files["llm-d/router.values.yaml"])["router"]
    assert values["modelArtifacts"]["labels"].items() <= router["modelServers"]["matchLabels"].items()
    servers = _servers(launch)
    pools = {"decode": servers.get("decode") or servers["server"]} | (
        {"prefill": servers["prefill"]} if len(servers) > 1 else {}
    )
    total = 0
    for name, process in pools.items():
        pool = values[name]
        assert (
            pool["create"] and pool["replicas"] == process.replicas and pool["parallelism"]["workers"] == process.nodes
        )
        total += _gpus(process.replicas * process.nodes, pool)
        container = pool["containers"][0]
        port = container["args"][container["args"].index("--port") + 1]
        behind = values["routing"]["proxy"]["enabled"] and name == "decode"
        assert int(port) == (values["routing"]["proxy"]["targetPort"] if behind else values["routing"]["servicePort"])
        assert (
            ("LWS_WORKER_INDEX" in container["command"][-1])
            == (process.nodes > 1)
            == ("$HEAD_IP" in container["command"][-1])
        )
    assert values["prefill"]["create"] == ("prefill" in pools) and total == _total(launch)
    assert ("epp" in router) == ("prefill" in pools)


# ------------------------------------------------------------------ one file, other devices, any plan


def test_a_small_compose_file_as_it_is() -> None:
    process = Process(
        name="server",
        engine="vllm",
        argv=["vllm", "serve", "$MODEL", "--tensor-parallel-size", "2", "--port", "$PORT"],
        gpus=2,
        gpus_per_node=2,
    )
    launch = Launch(engine="vllm", model="owner/model", processes=[process], bench=process)
    assert manifests.files(launch)["compose.yaml"] == COMPOSE


def test_a_checkpoint_that_is_made_first_is_in_the_volume_of_the_cache() -> None:
    launch = launches_of(pool_of(tp=2))["trtllm"]
    assert launch.model == "./model-fp8"
    files = manifests.files(launch)
    assert "${MODEL:-/cache/model-fp8}" in _load(files["compose.yaml"])["services"]["server-0"]["command"]
    assert "  MODEL: /cache/model-fp8\n" in files["kubernetes/common.yaml"]
    assert "    - /cache/model-fp8\n" in files["dynamo/graph.yaml"]
    assert all(
        "checkpoint model-fp8 into the volume" in files[name]
        for name in ("compose.yaml", "kubernetes/kustomization.yaml")
    )


def test_ranks_of_nodes_are_figures_or_the_shells() -> None:
    vllm = _launches(pool_of(dp=32, ep=True))["vllm"]
    files = manifests.files(vllm)
    last = _load(files["compose.machine-3.yaml"])["services"]["server-0-node-3"]["command"]
    assert last[last.index("--data-parallel-start-rank") + 1] == "24" and "--headless" in last
    assert last[last.index("--data-parallel-address") + 1].startswith("${MACHINE_0:?")
    (pool,) = _load_all(files["kubernetes/server.yaml"])
    leader, worker = (
        pool["spec"]["leaderWorkerTemplate"][key]["spec"]["containers"][0]
        for key in ("leaderTemplate", "workerTemplate")
    )
    assert "--data-parallel-start-rank" not in [*leader["args"], *leader["command"][-1].split()]  # vLLM's own default
    assert "--data-parallel-start-rank $((LWS_WORKER_INDEX * 8))" in worker["command"][-1]
    assert "--data-parallel-start-rank" not in worker["args"]


def _started(container: dict[str, Any], tmp_path: Path, **env: str) -> list[str]:
    """What a program gets from the shell of its container, with Kubernetes' own variables filled in."""
    stub = tmp_path / "program"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    texts = [re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], text) for text in container["args"]]
    command = [*container["command"], str(stub), *texts[1:]]
    environment = {"PATH": "/usr/bin:/bin", **env}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_shell_of_a_container_starts_its_program(tmp_path: Path) -> None:
    files = manifests.files(_launches(pool_of(dp=32, ep=True))["vllm"])
    given = {"MODEL": "a/b", "EXTRA_ARGS": "--seed 7", "POD_IP": "10.0.0.9", "LWS_LEADER_ADDRESS": "leader"}
    group = _load(files["kubernetes/server.yaml"])["spec"]["leaderWorkerTemplate"]
    worker = _started(group["workerTemplate"]["spec"]["containers"][0], tmp_path, LWS_WORKER_INDEX="2", **given)
    assert worker[:2] == ["serve", "a/b"] and worker[-2:] == ["--seed", "7"]
    assert worker[worker.index("--data-parallel-start-rank") + 1] == "16"
    assert worker[worker.index("--data-parallel-address") + 1] == "leader"
    leader = _started(group["leaderTemplate"]["spec"]["containers"][0], tmp_path, LWS_WORKER_INDEX="0", **given)
    assert leader[leader.index("--data-parallel-address") + 1] == "10.0.0.9" and "--headless" not in leader
    either = _load(files["llm-d/modelservice.values.yaml"])["decode"]["containers"][0]
    others = _started(either, tmp_path, LWS_WORKER_INDEX="2", **given)
    first = _started(either, tmp_path, LWS_WORKER_INDEX="0", **given)
    assert sorted(others) == sorted(["owner/model" if part == "a/b" else part for part in worker[:-2]])
    assert sorted(first) == sorted(["owner/model" if part == "a/b" else part for part in leader[:-2]])


def test_other_vendors_have_their_own_resources() -> None:
    amd = manifests.files(_launches(pool_of(tp=2), vendor="AMD", architecture="cdna3")["vllm"])
    assert 'amd.com/gpu: "2"' in amd["kubernetes/server.yaml"] and "vllm-openai-rocm" in amd["compose.yaml"]
    service = _load(amd["compose.yaml"])["services"]["server-0"]
    assert service["environment"]["ROCR_VISIBLE_DEVICES"] == "0,1" and "deploy" not in service
    assert not any(path.startswith("dynamo") for path in amd)
    newer = launches_of(pool_of(), versions={"sglang": "0.5.16"}, vendor="AMD", architecture="cdna4")["sglang"]
    assert "lmsysorg/sglang:v0.5.16-rocm720-mi35x" in manifests.files(newer)["compose.yaml"]
    older = launches_of(pool_of(), versions={"vllm": "0.25"})["vllm"]
    assert "vllm/vllm-openai:v0.25.1" in manifests.files(older)["kubernetes/server.yaml"]
    assert manifests.files(_launches(pool_of(tp=2), vendor="AMD", architecture="cdna3")["trtllm"]) == {}
    gaudi = manifests.files(_launches(pool_of(tp=2), vendor="Intel", architecture="gaudi")["vllm"])
    assert (
        'habana.ai/gaudi: "2"' in gaudi["kubernetes/server.yaml"] and "image: IMAGE" in gaudi["kubernetes/server.yaml"]
    )
    assert manifests.files(_launches(pool_of(), vendor="Apple", architecture="m4")["vllm"]) == {}


def test_sglangs_prefill_servers_of_one_host_have_ports_of_their_own() -> None:
    launch = _launches(pool_of("prefill", tp=4, replicas=3), pool_of("decode", tp=8))["sglang"]
    first = _load(manifests.files(launch)["compose.yaml"])["services"]
    ports = [service["command"][-1] for name, service in first.items() if name.startswith("prefill")]
    assert ports == ["8998", "8999"]
    argv = first["router"]["command"]
    assert [argv[n + 2] for n, part in enumerate(argv) if part == "--prefill"] == ["8998", "8999", "8998"]


SIZES = st.sampled_from([1, 2, 4, 8, 16])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    tp=SIZES,
    pp=SIZES,
    dp=SIZES,
    replicas=st.integers(1, 6),
    split=st.booleans(),
    engine=st.sampled_from(["vllm", "sglang"]),
)
def test_gpus_of_any_plan_are_all_asked_for(tp: int, pp: int, dp: int, replicas: int, split: bool, engine: str) -> None:
    pools = [
        pool_of("prefill" if split else "both", tp, pp, replicas=replicas),
        *([pool_of("decode", 1, 1, dp)] if split else []),
    ]
    launch = _launches(*pools)[engine]
    parts = placed(launch)
    expected = sum(pool.gpus * pool.replicas for pool in pools)
    assert sum(part.process.gpus_per_node for part in parts) == expected
    for machine in {part.machine for part in parts}:
        spans = sorted((p.gpu, p.gpu + p.process.gpus_per_node) for p in parts if p.machine == machine)
        assert spans[-1][1] <= 8 and all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    documents = _documents(launch, "kubernetes/")
    assert sum(_gpus(pods, pod["spec"]) for d in documents for pods, pod in _templates(d)) == expected


# ------------------------------------------------------------------ YAML

PLAIN = st.text(st.characters(exclude_categories=("Cs", "Cc", "Co", "Cn"), exclude_characters="\ufeff"), max_size=12)
LEAVES = st.none() | st.booleans() | st.integers() | PLAIN | st.lists(PLAIN, min_size=2, max_size=4).map("\n".join)
LEAVES |= st.sampled_from(
    ["", "no", "On", "1e3", "0x1f", "12:30:45", "- a", "a: b", "a #b", "-", "--", "=", "<<", "~", "|", "%x", "@a"]
)
DATA = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(PLAIN, inner, max_size=4), max_leaves=12
)


@pytest.mark.slow
@given(DATA)
def test_yaml_reads_back(data: Any) -> None:
    assert yaml.safe_load(yaml_text(data)) == data == _load(yaml_text(data))


def test_yaml_is_what_people_write() -> None:
    data = {"args": ["--port", "8000", "$(MODEL)"], "data": {"a.conf": "x {\n  y;\n}\n"}, "none": {}, "on": True}
    lines = ["# why", "args:", "- --port", '- "8000"', "- $(MODEL)"]
    lines += ["data:", "  a.conf: |", "    x {", "      y;", "    }", "none: {}", '"on": true']
    assert yaml_text(data, comments=["why"]).splitlines() == lines
