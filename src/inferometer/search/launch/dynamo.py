"""A plan as a DynamoGraphDeployment: a frontend and a component for each pool. The operator starts what spans nodes."""

from __future__ import annotations

from typing import Any

from .container_command import FILES
from .deployment_data import EngineImages, deployment_data
from .pod_templates import CACHE, gpu_resources, label_value, labels_of, token_variable
from .processes import Launch, Process
from .yaml_text import yaml_text

_TYPES = {"server": "worker", "prefill": "prefill", "decode": "decode"}


def dynamo_files(launch: Launch) -> dict[str, str]:
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
        "metadata": {"name": f"{launch.engine}-{label_value(launch.model).replace('.', '-')}"[:40].rstrip("-")},
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
            "data": _files(engine, process),
        }
        for process in servers
        if _files(engine, process)
    ]
    comments = [
        "kubectl apply -f dynamo/  # where Dynamo's operator is installed",
        f"Images are those of Dynamo ({engine.dynamo_image}): put the host of NVIDIA's registry before their names.",
    ]
    return {"dynamo/graph.yaml": yaml_text(claim, *files, graph, comments=[*comments, *launch.notes])}


def _files(engine: EngineImages, process: Process) -> dict[str, str]:
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
    if _files(engine, process):
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
