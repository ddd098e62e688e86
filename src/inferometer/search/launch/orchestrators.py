"""A plan for those who run clusters: a DynamoGraphDeployment, and values of llm-d's Helm charts.

Dynamo's operator starts what spans nodes itself. Pods of all nodes of an llm-d server run one template, so the shell
decides by the pod's index who listens.
"""

from __future__ import annotations

import json
from typing import Any

from .containers import (
    CACHE,
    FILES,
    HOST_IP,
    SECRET,
    EngineImages,
    Manifest,
    accelerator_of,
    container_command,
    deployment_data,
    filled,
    gpu_resources,
    image_of,
    label_value,
    labels_of,
    probes,
    token_variable,
)
from .processes import Launch, Process

# The operator refuses names of more than 45 characters: graph, pool, and once more the pool with -ldr or -wkr (Dynamo
# v1.4.1 deploy/operator/internal/webhook/validation/dynamographdeployment_helpers.go:152-168).
_NAME_LENGTH = 24
_TYPES = {"server": "worker", "prefill": "prefill", "decode": "decode"}
_NODE_FLAGS = {
    "--node-rank",
    "--master-addr",
    "--dist-init-addr",
    "--data-parallel-start-rank",
    "--data-parallel-address",
}
_DECIDER = "always-disagg-pd-decider"


# ------------------------------------------------------------------ Dynamo


def dynamo_files(launch: Launch) -> dict[str, Manifest]:
    """The graph, the cache of weights and the files of its workers: ``dynamo_files(launch)["dynamo/graph.yaml"]``

    Dynamo runs on NVIDIA's GPUs.
    """
    if launch.vendor != "NVIDIA":
        return {}
    servers = [process for process in launch.processes if process.gpus]
    engine = deployment_data().engines[launch.engine]
    graph = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {
            "name": f"{launch.engine}-{label_value(launch.model).replace('.', '-')}"[:_NAME_LENGTH].rstrip("-")
        },
        "spec": {
            "backendFramework": launch.engine,
            "env": [{"name": "HF_HOME", "value": CACHE}, token_variable()],
            "components": [_frontend(engine), *(_worker(launch, engine, process) for process in servers)],
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{launch.engine}-cache", "labels": labels_of(launch, "cache")},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": deployment_data().pod.cache}},
        },
    }
    files = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": _files_name(launch, process), "labels": labels_of(launch, process.name)},
            "data": _engine_files(engine, process),
        }
        for process in servers
        if _engine_files(engine, process)
    ]
    comments = [
        "kubectl apply -f dynamo/  # needs Dynamo's operator",
        f"Images are those of Dynamo ({engine.dynamo_image}): prefix them with the host of NVIDIA's registry.",
    ]
    return {"dynamo/graph.yaml": Manifest([claim, *files, graph], [*comments, *launch.notes])}


def _engine_files(engine: EngineImages, process: Process) -> dict[str, str]:
    """Files that the engine itself reads: not those of a launcher, whose work the operator does."""
    flags = process.argv[process.argv.index(engine.program) :]
    return {name: text for name, text in process.files.items() if name in flags}


def _files_name(launch: Launch, process: Process) -> str:
    return f"{launch.engine}-{process.name}-files"


def _frontend(engine: EngineImages) -> dict[str, Any]:
    """Dynamo's own front: it speaks OpenAI's API and deals requests out."""
    container = {"name": "main", "image": engine.dynamo_image, "command": ["python3"]}
    container |= {"args": ["-m", "dynamo.frontend", "--router-mode", "round-robin"]}
    template = {"spec": {"containers": [container]}}
    return {"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": template}


def _worker(launch: Launch, engine: EngineImages, process: Process) -> dict[str, Any]:
    """The component of a pool."""
    mounts = [{"name": "cache", "mountPath": CACHE}]
    volumes: list[dict[str, Any]] = [
        {"name": "cache", "persistentVolumeClaim": {"claimName": f"{launch.engine}-cache"}}
    ]
    if _engine_files(engine, process):
        mounts.append({"name": "files", "mountPath": FILES})
        volumes.append({"name": "files", "configMap": {"name": _files_name(launch, process)}})
    container = {
        "name": "main",
        "image": engine.dynamo_image,
        "command": ["python3", "-m", engine.dynamo_module],
        "args": dynamo_args(launch, engine, process),
        "resources": gpu_resources(launch, process.gpus_per_node),
        "volumeMounts": mounts,
    }
    component: dict[str, Any] = {
        "name": process.name,
        "type": _TYPES[process.name],
        "replicas": process.replicas,
        "sharedMemorySize": deployment_data().pod.shared_memory,
        "podTemplate": {"spec": {"containers": [container], "volumes": volumes}},
    }
    return component | ({"multinode": {"nodeCount": process.nodes}} if process.nodes > 1 else {})


def dynamo_args(launch: Launch, engine: EngineImages, process: Process) -> list[str]:
    """A server's arguments as Dynamo's module takes them: without ports and ranks, which are Dynamo's to give.

    ``dynamo_args(launch, engine, server)  # ['--model', 'owner/model', '--tensor-parallel-size', '2', …]``
    """
    args = [engine.dynamo_model_flag, launch.model]
    flags = process.argv[process.argv.index(engine.program) + 1 :]
    position = 0 if flags[0].startswith("--") else 1
    while position < len(flags):
        flag, values = flags[position], 1
        while position + values < len(flags) and not flags[position + values].startswith("--"):
            values += 1
        given = [
            f"{FILES}/{value}" if value in process.files else value for value in flags[position + 1 : position + values]
        ]
        position += values
        if flag not in engine.dynamo_drop and "$MODEL" not in given:
            args += [engine.dynamo_flags.get(flag, flag), *given]
    if engine.dynamo_mode_flag and process.name != "server":
        args += ["--disaggregation-mode", process.name]
    return args


# ------------------------------------------------------------------ llm-d


def llm_d_files(launch: Launch) -> dict[str, Manifest]:
    """Values of two charts, where llm-d has the engine: ``llm_d_files(launch)["llm-d/router.values.yaml"]``"""
    engine = deployment_data().engines[launch.engine]
    accelerator = accelerator_of(launch)
    if not engine.llm_d_connector or accelerator is None:
        return {}
    servers = {process.name: process for process in launch.processes if process.gpus}
    split = "prefill" in servers
    ports = deployment_data().ports
    pools = {
        "decode": _llm_d_pool(
            launch, servers.get("decode") or servers["server"], ports.llm_d_target if split else ports.entry
        ),
        "prefill": _llm_d_pool(launch, servers["prefill"], ports.entry) if split else {"create": False, "replicas": 0},
    }
    labels = {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": label_value(launch.model)}
    values = {
        "multinode": any(process.nodes > 1 for process in servers.values()),
        "accelerator": {"type": accelerator.llm_d},
        "modelArtifacts": {
            "name": launch.model,
            "uri": _llm_d_uri(launch),
            "mountPath": CACHE,
            "size": deployment_data().pod.cache,
            "authSecretName": SECRET,
            "labels": labels,
        },
        "routing": {"servicePort": ports.entry, "proxy": _llm_d_proxy(engine, split)},
        **pools,
    }
    install = "helm install {} {} -f llm-d/{}.values.yaml"
    comments = [
        install.format("ms", "llm-d-modelservice", "modelservice")
        + "  # chart v0.4.12 of llm-d-incubation/llm-d-modelservice",
        f"kubectl create secret generic {SECRET} --from-literal=HF_TOKEN=…  # or remove authSecretName",
    ]
    router = install.format("router", "llm-d-router-standalone", "router") + "  # chart of llm-d/llm-d-router v0.10.0"
    return {
        "llm-d/modelservice.values.yaml": Manifest([values], [*comments, *launch.notes]),
        "llm-d/router.values.yaml": Manifest([_llm_d_router(launch, labels, split)], [router]),
    }


def _llm_d_uri(launch: Launch) -> str:
    """Where the weights come from: Hugging Face, or a claim that they were copied to."""
    copied = launch.model.startswith(f"{CACHE}/")
    return f"pvc://{launch.engine}-cache/{launch.model.removeprefix(f'{CACHE}/')}" if copied else f"hf://{launch.model}"


def _llm_d_proxy(engine: EngineImages, split: bool) -> dict[str, Any]:
    """llm-d's sidecar of decode pods, which asks a prefill pod first."""
    if not split:
        return {"enabled": False}
    target = deployment_data().ports.llm_d_target
    return {"enabled": True, "connector": engine.llm_d_connector, "targetPort": target, "secure": False}


def _llm_d_pool(launch: Launch, process: Process, port: int) -> dict[str, Any]:
    """The values of one pool."""
    variables = {"MODEL": launch.model, "PORT": str(port), "HOST_IP": "$(POD_IP)", "HEAD_IP": "", "NODE_RANK": ""}
    variables |= {"NODE_RANK": "$(LWS_WORKER_INDEX)"} if process.nodes > 1 else {}
    argv, script = _llm_d_command(process, variables)
    env = [{"name": key, "value": filled(value, variables)} for key, value in process.env.items()]
    container: dict[str, Any] = {
        "name": process.engine,
        "image": image_of(launch, process),
        "modelCommand": "custom",
        "command": ["sh", "-c", script] if script else argv[:1],
        "args": argv if script else argv[1:],
        "env": [HOST_IP, *env],
        "ports": [{"containerPort": port, "protocol": "TCP"}],
        "resources": gpu_resources(launch, process.gpus_per_node),
        "mountModelVolume": True,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if process.nodes == 1:  # nodes after the first do not listen
        container |= probes(port, starts_slowly=True)
    shared = {"medium": "Memory", "sizeLimit": deployment_data().pod.shared_memory}
    return {
        "create": True,
        "replicas": process.replicas,
        # The chart counts GPUs by it; the engine's own flags are in args.
        "parallelism": {"tensor": process.gpus_per_node, "data": 1, "dataLocal": 1, "workers": process.nodes},
        "terminationGracePeriodSeconds": deployment_data().pod.termination_grace,
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": shared}],
    }


def _llm_d_command(process: Process, variables: dict[str, str]) -> tuple[list[str], str]:
    """Arguments, and the shell's line where nodes differ: the address of the first, and what only the others say."""
    if process.nodes == 1:
        return container_command(process, process.argv, variables).argv, ""
    common: list[str] = []
    by_node: list[str] = []
    parts = iter(process.argv)
    for part in parts:
        (by_node if part in _NODE_FLAGS else common).append(part)
        if part in _NODE_FLAGS:
            by_node.append(next(parts))
    others = [part for part in process.headless_argv or [] if part not in process.argv]
    more = f'; set -- "$@" {" ".join(others)}' if others else ""
    script = (
        'if [ "$LWS_WORKER_INDEX" = 0 ]; then HEAD_IP=$POD_IP; '
        f'else HEAD_IP=$LWS_LEADER_ADDRESS{more}; fi; exec "$0" "$@" {" ".join(by_node)}'
    )
    return container_command(process, common, variables).argv, script.replace("NODE_RANK", "LWS_WORKER_INDEX")


def _llm_d_router(launch: Launch, labels: dict[str, str], split: bool) -> dict[str, Any]:
    """The values of llm-d's router: which pods it sends to, and, of pools apart, how it chooses a pair."""
    if any(process.nodes > 1 for process in launch.processes):  # the first pod of a server is the one that listens
        labels = labels | {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    servers = {"matchLabels": labels, "type": launch.engine, "targetPorts": [{"number": deployment_data().ports.entry}]}
    if not split:
        return {"router": {"modelServers": servers}}
    pick = [{"pluginRef": "max-score-picker"}, {"pluginRef": "queue-scorer", "weight": 1}]
    plugins = ["queue-scorer", "prefill-filter", "decode-filter", "max-score-picker", _DECIDER]
    config = {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [
            *({"type": plugin} for plugin in plugins),
            {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": _DECIDER}}},
        ],
        "schedulingProfiles": [
            {"name": role, "plugins": [{"pluginRef": f"{role}-filter"}, *pick]} for role in ("prefill", "decode")
        ],
    }
    name = "prefill-decode.yaml"  # JSON is YAML
    picker = {"pluginsConfigFile": name, "pluginsCustomConfig": {name: json.dumps(config, indent=2) + "\n"}}
    return {"router": {"modelServers": servers, "epp": picker}}
