"""Files that deploy a plan, by path: Docker Compose, Kubernetes, Dynamo, llm-d."""

from __future__ import annotations

import msgspec

from .compose import compose_files
from .dynamo import dynamo_files
from .kubernetes import kubernetes_files
from .llm_d import llm_d_files
from .pod_templates import CACHE
from .processes import Launch


def files(launch: Launch) -> dict[str, str]:
    """Text by path; none where the engine cannot run the plan: ``files(launch)["kubernetes/server.yaml"]``"""
    if not launch.processes:
        return {}
    if launch.model.startswith((".", "/")):  # on a disk: containers see the volume of the cache, and nothing else
        name = launch.model.rstrip("/").rpartition("/")[2]
        notes = [*launch.notes, f"Copy the checkpoint {name} into the volume of the cache, {CACHE} in containers."]
        launch = msgspec.structs.replace(launch, model=f"{CACHE}/{name}", notes=notes)
    return compose_files(launch) | kubernetes_files(launch) | dynamo_files(launch) | llm_d_files(launch)
