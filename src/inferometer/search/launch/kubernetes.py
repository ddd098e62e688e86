"""A plan as objects of Kubernetes: a set of pods for each pool, a router, a Service before it all.

Servers of one node are a Deployment where the router finds pods by their labels, else a StatefulSet, whose pods have
names. Servers over several nodes are a LeaderWorkerSet: one pod a node, the first of them listens.
"""

from __future__ import annotations

from typing import Any

from .containers import (
    CACHE,
    HOST_IP,
    Manifest,
    accelerator_of,
    container_command,
    deployment_data,
    filled,
    image_of,
    labels_of,
    pod_spec,
    token_variable,
)
from .processes import Launch, Process
from .routers import Backend, discovering, router_process

_NAMESPACE = {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}


def kubernetes_files(launch: Launch) -> dict[str, Manifest]:
    """Each file by its path: ``kubernetes_files(launch)["kubernetes/server.yaml"]``"""
    mpi = deployment_data().engines[launch.engine].mpi and any(process.nodes > 1 for process in launch.processes)
    if accelerator_of(launch) is None or mpi:
        return {}
    servers = [process for process in launch.processes if process.gpus]
    router = _router(launch, servers)
    documents = {"common": _common(launch, servers)}
    documents |= {process.name: _pool(launch, process, named=not _discovers(launch)) for process in servers}
    if router is not None:
        documents["router"] = _router_objects(launch, router)
    documents["service"] = [_entry(launch, "router" if router else servers[0].name)]
    files = {
        f"kubernetes/{name}.yaml": Manifest(objects, ["kubectl apply -k kubernetes/: kustomization.yaml says more"])
        for name, objects in documents.items()
    }
    files["kubernetes/kustomization.yaml"] = _kustomization(launch, [*documents], servers, router)
    return files


def pool_name(launch: Launch, process: Process) -> str:
    """``vllm-prefill``"""
    return f"{launch.engine}-{process.name}"


def _discovers(launch: Launch) -> bool:
    """Whether the router finds servers by their labels: those that are alike. One server needs no router at all."""
    servers = [process for process in launch.processes if process.gpus]
    return len(servers) == 1 and (deployment_data().engines[launch.engine].discovery or servers[0].replicas == 1)


def _meta(launch: Launch, name: str, component: str) -> dict[str, Any]:
    return {"name": name, "labels": labels_of(launch, component)}


def _common(launch: Launch, servers: list[Process]) -> list[dict[str, Any]]:
    """What all servers share: the model's name, more arguments, the cache of weights, their files."""
    pods = sum(process.replicas * process.nodes for process in servers)
    claim = {
        "accessModes": ["ReadWriteMany" if pods > 1 else "ReadWriteOnce"],
        "resources": {"requests": {"storage": deployment_data().pod.cache}},
    }
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _meta(launch, f"{launch.engine}-config", "config"),
            "data": {"MODEL": launch.model, "EXTRA_ARGS": "", "HF_HOME": CACHE},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": _meta(launch, f"{launch.engine}-cache", "cache"),
            "spec": claim,
        },
    ]
    return objects


def _files(launch: Launch, process: Process) -> list[dict[str, Any]]:
    if not process.files:
        return []
    name = f"{pool_name(launch, process)}-files"
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(launch, name, process.name), "data": process.files}
    ]


def _pod(launch: Launch, process: Process, *, first: bool, component: str) -> dict[str, Any]:
    """The template of a server's pod, or of those after its first node."""
    argv = process.argv if first or process.headless_argv is None else process.headless_argv
    variables = {
        "MODEL": "$(MODEL)",
        "PORT": str(process.port),
        "HOST_IP": "$(POD_IP)",
        "HEAD_IP": "$(POD_IP)" if first else "$(LWS_LEADER_ADDRESS)",  # a name cannot be listened on
        "NODE_RANK": "0" if first else "$(LWS_WORKER_INDEX)",
    }
    command = container_command(process, argv, variables, extra=True)
    own = [{"name": key, "value": filled(value, variables)} for key, value in process.env.items()]
    spec = pod_spec(launch, process, command, [HOST_IP, *own, token_variable()], listens=first)
    return {"metadata": {"labels": labels_of(launch, component)}, "spec": spec}


def _pool(launch: Launch, process: Process, *, named: bool) -> list[dict[str, Any]]:
    """The objects of one pool."""
    name = pool_name(launch, process)
    metadata = _meta(launch, name, process.name)
    leader = _pod(launch, process, first=True, component=process.name)
    if process.nodes > 1:
        group = {
            "size": process.nodes,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": leader,
            "workerTemplate": _pod(launch, process, first=False, component=f"{process.name}-worker"),
        }
        spec: dict[str, Any] = {"replicas": process.replicas, "leaderWorkerTemplate": group}
        kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        return [*_files(launch, process), {**kind, "metadata": metadata, "spec": spec}]
    spec = {"replicas": process.replicas, "selector": {"matchLabels": labels_of(launch, process.name)}}
    if not named:
        rolling = {"maxSurge": 0, "maxUnavailable": 1}  # there are no GPUs for one more
        spec |= {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}, "template": leader}
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
        return [*_files(launch, process), deployment]
    spec |= {"serviceName": name, "podManagementPolicy": "Parallel", "template": leader}
    service = _service(launch, name, process.name, process.port)
    service["spec"] |= {"clusterIP": "None", "publishNotReadyAddresses": True}  # names for pods, before they are ready
    pods = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}
    return [*_files(launch, process), service, pods]


def _service(launch: Launch, name: str, component: str, port: int) -> dict[str, Any]:
    ports = [{"name": "http", "port": port, "targetPort": "http"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(launch, name, component),
        "spec": {"selector": labels_of(launch, component), "ports": ports},
    }


def _entry(launch: Launch, component: str) -> dict[str, Any]:
    """What clients call: ``http://vllm:8000/v1``"""
    return _service(launch, launch.engine, component, deployment_data().ports.entry)


def _router(launch: Launch, servers: list[Process]) -> Process | None:
    """The router: it finds servers alike by their labels, and is given the names of others."""
    backends = [
        Backend(process.name, f"{pool_name(launch, process)}-{n}.{pool_name(launch, process)}:{process.port}")
        for process in servers
        for n in range(process.replicas)
    ]
    router = router_process(launch.engine, backends)
    if router is None or not _discovers(launch):
        return router
    return discovering(router, labels_of(launch, servers[0].name), "$(POD_NAMESPACE)", servers[0].port)


def _router_objects(launch: Launch, router: Process) -> list[dict[str, Any]]:
    """The router's Deployment, with the right to see pods where it looks for them."""
    discovers = _discovers(launch)
    name, labels = pool_name(launch, router), labels_of(launch, router.name)
    spec = pod_spec(launch, router, container_command(router, router.argv, {}), [_NAMESPACE] if discovers else [])
    rights: list[dict[str, Any]] = []
    if discovers:
        spec["serviceAccountName"] = name
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
        access = {"apiVersion": "rbac.authorization.k8s.io/v1"}
        metadata = _meta(launch, name, router.name)
        rights = [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
            {**access, "kind": "Role", "metadata": metadata, "rules": [rule]},
            {
                **access,
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": role,
                "subjects": [{"kind": "ServiceAccount", "name": name}],
            },
        ]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(launch, name, router.name),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    return [*_files(launch, router), *rights, deployment]


def _kustomization(launch: Launch, names: list[str], servers: list[Process], router: Process | None) -> Manifest:
    """The list of files, the images in one place, and how to apply it."""
    processes = [*servers, *([router] if router is not None else [])]
    images = dict.fromkeys(image_of(launch, process) for process in processes)
    split = [image.partition(":") for image in images]
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{name}.yaml" for name in names],
        "images": [{"name": name, "newName": name, "newTag": tag or "latest"} for name, _, tag in split],
    }
    comments = [
        "kubectl create secret generic hf-token --from-literal=HF_TOKEN=…  # if the model is gated",
        f"kubectl apply -k kubernetes/  # then http://{launch.engine}:{deployment_data().ports.entry}/v1",
        f"kubectl port-forward service/{launch.engine} 8000  # for bench.sh, from outside the cluster",
        "Please check: size and class of the volume in common.yaml, the images below, nodes and tolerations.",
    ]
    if any(process.nodes > 1 for process in servers):
        comments.append("It needs LeaderWorkerSet in the cluster (kubernetes-sigs/lws).")
    engine = deployment_data().engines[launch.engine]
    if launch.vendor not in engine.images or not engine.docker_hub:
        comments.append("Fill in newName of the server, with the host of the registry that you pull from.")
    return Manifest([document], [*comments, *launch.notes])
