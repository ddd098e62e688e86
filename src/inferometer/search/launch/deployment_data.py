"""Images, resources, probes and ports of the files that start a plan: `data/launch/manifests.toml` as structs."""

from __future__ import annotations

import functools

import msgspec

from ...base.files import convert
from ...specs.catalog import shipped


class EngineImages(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine runs in containers, and what Dynamo and llm-d call its parts."""

    images: dict[str, str]  # vendor -> image, {tag} for its version
    tags: dict[str, str]  # version -> tag; the newest last
    program: str  # the last word of a command before its flags
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

    def image(self, vendor: str, version: str) -> str | None:
        """``engine.image("NVIDIA", "0.25")  # 'vllm/vllm-openai:v0.25.1'``; None where no public one is known."""
        tag = self.tags.get(version) or ([*self.tags.values()][-1] if not version else f"v{version}")
        return self.images[vendor].format(tag=tag) if vendor in self.images else None


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
    """``deployment_data().engines["vllm"].image("NVIDIA", "0.25")  # 'vllm/vllm-openai:v0.25.1'``"""
    data = shipped("launch", "manifests")
    for table in ("routers", "accelerators"):
        data[table].pop("source")
    return convert(data, DeploymentData, "data/launch/manifests.toml")
