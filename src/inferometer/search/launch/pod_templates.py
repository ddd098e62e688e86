"""Pods of a plan: containers with their GPUs, probes, caches and environment."""

from __future__ import annotations

import re
from typing import Any

from .container_command import FILES, ContainerCommand
from .deployment_data import Accelerator, deployment_data
from .processes import Launch, Process

SECRET = "hf-token"
CACHE = "/cache"
HOST_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def accelerator_of(launch: Launch) -> Accelerator | None:
    """How containers get the devices of a plan; None where no device plugin is known."""
    known = deployment_data().accelerators
    return known.get(launch.architecture) or known.get(launch.vendor)


def image_of(launch: Launch, process: Process) -> str:
    """The image of a server or a router; IMAGE where it is yours to fill in."""
    data = deployment_data()
    if process.gpus == 0 and process.engine in data.routers:
        return data.routers[process.engine]
    return data.engines[launch.engine].image(launch.vendor, launch.version) or "IMAGE"


def labels_of(launch: Launch, component: str) -> dict[str, str]:
    """Labels of everything that belongs to a pool: ``labels_of(launch, "prefill")``"""
    return {
        "app.kubernetes.io/name": launch.engine,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": label_value(launch.model),
    }


def label_value(text: str) -> str:
    """A name as the value of a label: ``label_value("meta-llama/Llama-3.1-8B")  # 'llama-3.1-8b'``"""
    plain = re.sub(r"[^a-z0-9.-]+", "-", text.rstrip("/").rpartition("/")[2].lower())[:63]
    return plain.strip("-.") or "model"


def gpu_resources(launch: Launch, gpus: int) -> dict[str, Any]:
    """Requests and limits of the devices: ``gpu_resources(launch, 2)["limits"]  # {'nvidia.com/gpu': '2'}``"""
    accelerator = accelerator_of(launch)
    assert accelerator is not None
    amount = {accelerator.resource: str(gpus)}
    return {"requests": amount, "limits": dict(amount)}


def token_variable() -> dict[str, Any]:
    """HF_TOKEN of a secret that need not be there."""
    return {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "HF_TOKEN", "optional": True}}}


def probes(port: int, *, starts_slowly: bool) -> dict[str, Any]:
    """Startup, readiness and liveness on /health; a router need not wait for weights."""
    pod = deployment_data().pod
    check = {"httpGet": {"path": "/health", "port": port}, "timeoutSeconds": pod.probe_timeout}
    failures = {"failureThreshold": pod.startup_failures}
    ready = {"readinessProbe": {**check, "periodSeconds": pod.readiness_period}}
    if not starts_slowly:
        return ready  # it is as healthy as the servers behind it, and must not be restarted for them
    return {
        "startupProbe": {**check, "periodSeconds": pod.startup_period, **failures},
        **ready,
        "livenessProbe": {**check, "periodSeconds": pod.liveness_period, "failureThreshold": pod.liveness_failures},
    }


def pod_spec(
    launch: Launch, process: Process, command: ContainerCommand, env: list[dict[str, Any]], *, listens: bool = True
) -> dict[str, Any]:
    """The pod of a server, one of its nodes, or a router."""
    container: dict[str, Any] = {"name": process.name, "image": image_of(launch, process)}
    if command.script:
        container |= {"command": command.entrypoint, "args": command.argv}
    else:
        container |= {"command": command.argv[:1], "args": command.argv[1:]}
    if env:
        container["env"] = env
    mounts, volumes = _volumes(launch, process)
    if process.gpus:
        container["envFrom"] = [{"configMapRef": {"name": f"{launch.engine}-config"}}]
        container["resources"] = gpu_resources(launch, process.gpus_per_node)
    if listens:
        container["ports"] = [{"name": "http", "containerPort": process.port}]
        container |= probes(process.port, starts_slowly=bool(process.gpus))
    if mounts:
        container["volumeMounts"] = mounts
    spec: dict[str, Any] = {"containers": [container]}
    spec["enableServiceLinks"] = False  # a Service called vllm would set VLLM_PORT, which vLLM reads
    if process.gpus:
        spec["terminationGracePeriodSeconds"] = deployment_data().pod.termination_grace
    return spec | ({"volumes": volumes} if volumes else {})


def _volumes(launch: Launch, process: Process) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Mounts and volumes: shared memory and the cache of weights for a server, files for whoever has some."""
    mounts: list[dict[str, Any]] = []
    volumes: list[dict[str, Any]] = []
    if process.gpus:
        memory = {"medium": "Memory", "sizeLimit": deployment_data().pod.shared_memory}
        mounts += [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "cache", "mountPath": CACHE}]
        volumes += [
            {"name": "shm", "emptyDir": memory},
            {"name": "cache", "persistentVolumeClaim": {"claimName": f"{launch.engine}-cache"}},
        ]
    if process.files:
        mounts.append({"name": "files", "mountPath": FILES})
        volumes.append({"name": "files", "configMap": {"name": f"{launch.engine}-{process.name}-files"}})
    return mounts, volumes
