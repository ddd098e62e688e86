"""Processes in containers: their images, commands, GPUs, probes and volumes, for Compose and for pods.

What is taken as given (images, resources, times, ports) is `data/launch/manifests.toml`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ...base.files import convert
from ...specs.catalog import shipped
from .processes import Launch, Process

FILES = "/config"  # where a container finds the files of its process
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
_RANKS = re.compile(r"\$\(\(NODE_RANK \* (\d+)\)\)")  # the first rank of a node, of so many on each
SECRET = "hf-token"
CACHE = "/cache"
HOST_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


class Manifest(NamedTuple):
    """A file before it is text."""

    documents: list[dict[str, Any]]
    comments: list[str]


# ------------------------------------------------------------------ what is given


class EngineImages(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine runs in containers, and what Dynamo and llm-d call its parts."""

    images: dict[str, str]  # vendor or architecture -> image, {tag} for its version
    tags: dict[str, str]  # version -> tag; the newest last
    program: str  # the last word of a command before its flags
    other_devices: bool = False  # it runs on devices whose image is yours to say
    docker_hub: bool = True  # the images are there; else by the host of a registry that is yours to say
    discovery: bool = False  # its router finds servers by their labels
    mpi: bool = False  # servers over several nodes are started by MPI
    dynamo_module: str
    dynamo_image: str
    dynamo_model_flag: str
    dynamo_mode_flag: bool = False  # Dynamo has a --disaggregation-mode of its own
    dynamo_drop: list[str]  # flags that Dynamo gives itself, each with one value
    dynamo_flags: dict[str, str] = {}  # flag -> Dynamo's name of it
    llm_d_connector: str = ""  # "" = llm-d has none
    source: dict[str, str]

    def image(self, launch: Launch) -> str | None:
        """``engine.image(launch)  # 'vllm/vllm-openai:v0.25.1'``; None where no public one is known."""
        name = self.images.get(launch.architecture) or self.images.get(launch.vendor)
        version = launch.version or [*self.tags][-1]
        return name.format(tag=self.tags.get(version, f"v{version}")) if name else None


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """How a container gets devices."""

    resource: str  # of Kubernetes' device plugin
    llm_d: str
    compose_driver: str = ""
    compose_devices: list[str] = []
    compose_visible: str = ""  # the variable that says which of them


class PodFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Times of probes in seconds, and sizes of volumes."""

    startup_period: int
    startup_failures: int
    readiness_period: int
    liveness_period: int
    liveness_failures: int
    probe_timeout: int
    termination_grace: int
    shared_memory: str
    cache: str
    source: str


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """Ports that are not a server's own."""

    entry: int
    llm_d_target: int
    source: str


class DeploymentData(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    engines: dict[str, EngineImages]
    routers: dict[str, str]
    accelerators: dict[str, Accelerator]  # by vendor, or by architecture
    pod: PodFigures
    ports: Ports


@functools.cache
def deployment_data() -> DeploymentData:
    """``deployment_data().engines["vllm"].image(launch)  # 'vllm/vllm-openai:v0.25.1'``"""
    data = shipped("launch", "manifests")
    for table in ("routers", "accelerators"):
        data[table].pop("source")
    return convert(data, DeploymentData, "data/launch/manifests.toml")


# ------------------------------------------------------------------ commands


class ContainerCommand(NamedTuple):
    """``exec "$0" "$@" …`` of a shell, and the arguments that it gets; without a shell, the arguments alone."""

    argv: list[str]
    script: str = ""

    @property
    def entrypoint(self) -> list[str]:
        """What comes before the arguments: ``['sh', '-c', 'exec "$0" "$@" $EXTRA_ARGS']``"""
        return ["sh", "-c", self.script] if self.script else []


def container_command(
    process: Process,
    argv: list[str],
    variables: Mapping[str, str],
    *,
    extra: bool = False,
    exports: Mapping[str, str] | None = None,
) -> ContainerCommand:
    """Arguments with their variables filled in: ``container_command(server, server.argv, {"PORT": "8000"}).argv``

    What takes arithmetic (a rank of each node) is left to a shell, with the flag before it; so are ``exports``, whose
    values are the shell's own, and EXTRA_ARGS, which is split at blanks.
    """
    names = {name: f"{FILES}/{name}" for name in process.files}
    known = {**variables, "PWD": FILES}
    parts: list[str] = []
    computed: list[str] = []
    for part in argv:
        if _RANKS.search(part) and not variables["NODE_RANK"].isdigit():
            variable = variables["NODE_RANK"].strip("$()")
            computed += [parts.pop(), part.replace("NODE_RANK", variable)]
        else:
            product = _RANKS.sub(lambda match: str(int(variables["NODE_RANK"]) * int(match[1])), part)
            parts.append(names.get(part, filled(product, known)))
    shell = [*computed, *(["$EXTRA_ARGS"] if extra else [])]
    before = "".join(f"export {name}={value}; " for name, value in (exports or {}).items())
    script = before + " ".join(['exec "$0" "$@"', *shell])
    return ContainerCommand(parts, script if shell or exports else "")


def filled(text: str, variables: Mapping[str, str]) -> str:
    """Text with its variables filled in; all of them have a value: ``filled("$A:1", {"A": "x"})  # 'x:1'``"""
    return _VARIABLE.sub(lambda match: variables[match[1] or match[2]], text)


# ------------------------------------------------------------------ pods


def accelerator_of(launch: Launch) -> Accelerator | None:
    """How containers get the devices of a plan; None where no device plugin is known."""
    known = deployment_data().accelerators
    return known.get(launch.architecture) or known.get(launch.vendor)


def image_of(launch: Launch, process: Process) -> str:
    """The image of a server or a router; IMAGE where it is yours to fill in."""
    data = deployment_data()
    if process.gpus == 0 and process.engine in data.routers:
        return data.routers[process.engine]
    return data.engines[launch.engine].image(launch) or "IMAGE"


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
