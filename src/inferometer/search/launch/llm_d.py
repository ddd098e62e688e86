"""A plan as values of llm-d's Helm charts: its model servers, and the router before them.

Pods of all nodes of a server run one template, so the shell decides by the pod's index who listens.
"""

from __future__ import annotations

from typing import Any

from .container_command import container_command, filled
from .deployment_data import EngineImages, deployment_data
from .pod_templates import CACHE, HOST_IP, SECRET, accelerator_of, gpu_resources, image_of, label_value, probes
from .processes import Launch, Process
from .yaml_text import yaml_text

_NODE_FLAGS = {
    "--node-rank",
    "--master-addr",
    "--dist-init-addr",
    "--data-parallel-start-rank",
    "--data-parallel-address",
}
_DECIDER = "always-disagg-pd-decider"


def llm_d_files(launch: Launch) -> dict[str, str]:
    """Values of two charts, where llm-d has the engine: ``llm_d_files(launch)["llm-d/router.values.yaml"]``"""
    engine = deployment_data().engines[launch.engine]
    accelerator = accelerator_of(launch)
    if not engine.llm_d_connector or accelerator is None:
        return {}
    servers = {process.name: process for process in launch.processes if process.gpus}
    split = "prefill" in servers
    ports = deployment_data().ports
    pools = {
        "decode": _pool(
            launch, servers.get("decode") or servers["server"], ports.llm_d_target if split else ports.entry
        ),
        "prefill": _pool(launch, servers["prefill"], ports.entry) if split else {"create": False, "replicas": 0},
    }
    labels = {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": label_value(launch.model)}
    values = {
        "multinode": any(process.nodes > 1 for process in servers.values()),
        "accelerator": {"type": accelerator.llm_d},
        "modelArtifacts": {
            "name": launch.model,
            "uri": _uri(launch),
            "mountPath": CACHE,
            "size": deployment_data().pod.cache,
            "authSecretName": SECRET,
            "labels": labels,
        },
        "routing": {"servicePort": ports.entry, "proxy": _proxy(engine, split)},
        **pools,
    }
    install = "helm install {} {} -f llm-d/{}.values.yaml"
    comments = [
        install.format("ms", "llm-d-modelservice", "modelservice")
        + "  # chart v0.4.12 of llm-d-incubation/llm-d-modelservice",
        f"kubectl create secret generic {SECRET} --from-literal=HF_TOKEN=…  # or take authSecretName out",
    ]
    router = install.format("router", "llm-d-router-standalone", "router") + "  # chart of llm-d/llm-d-router v0.10.0"
    return {
        "llm-d/modelservice.values.yaml": yaml_text(values, comments=[*comments, *launch.notes]),
        "llm-d/router.values.yaml": yaml_text(_router(launch, labels, split), comments=[router]),
    }


def _uri(launch: Launch) -> str:
    """Where the weights come from: Hugging Face, or a claim that they were copied to."""
    copied = launch.model.startswith(f"{CACHE}/")
    return f"pvc://{launch.engine}-cache/{launch.model.removeprefix(f'{CACHE}/')}" if copied else f"hf://{launch.model}"


def _proxy(engine: EngineImages, split: bool) -> dict[str, Any]:
    """llm-d's sidecar of decode pods, which asks a prefill pod first."""
    if not split:
        return {"enabled": False}
    target = deployment_data().ports.llm_d_target
    return {"enabled": True, "connector": engine.llm_d_connector, "targetPort": target, "secure": False}


def _pool(launch: Launch, process: Process, port: int) -> dict[str, Any]:
    """The values of one pool."""
    variables = {"MODEL": launch.model, "PORT": str(port), "HOST_IP": "$(POD_IP)", "HEAD_IP": "", "NODE_RANK": ""}
    variables |= {"NODE_RANK": "$(LWS_WORKER_INDEX)"} if process.nodes > 1 else {}
    argv, script = _command(process, variables)
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
        # The chart counts GPUs by it; what the engine is told is in args.
        "parallelism": {"tensor": process.gpus_per_node, "data": 1, "dataLocal": 1, "workers": process.nodes},
        "terminationGracePeriodSeconds": deployment_data().pod.termination_grace,
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": shared}],
    }


def _command(process: Process, variables: dict[str, str]) -> tuple[list[str], str]:
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


def _router(launch: Launch, labels: dict[str, str], split: bool) -> dict[str, Any]:
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
    name = "prefill-decode.yaml"
    picker = {"pluginsConfigFile": name, "pluginsCustomConfig": {name: yaml_text(config)}}
    return {"router": {"modelServers": servers, "epp": picker}}
