"""A plan as files of Docker Compose: a service for each server, its GPUs, and the router; a file for each machine.

On one machine, services have a network of their own and find each other by name. Over several machines they use that
of the host: KV caches and collectives choose their ports themselves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .containers import FILES, ContainerCommand, Manifest, container_command, deployment_data, filled
from .processes import SGLANG, Launch, Process
from .routers import Backend, router_process

_PORTS_APART = 100  # of servers on one host: engines take ports near their own
_SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_PORT"
_BOOTSTRAP = "--disaggregation-bootstrap-port"
_BOOTSTRAP_PORT = 8998  # SGLang's default: v0.5.18 python/sglang/srt/server_args.py:3114


class Placed(NamedTuple):
    """What one machine runs of one server."""

    process: Process
    replica: int
    node: int  # of the server
    machine: int
    slot: int  # of this machine's services
    gpu: int  # the first of this machine's that it has
    head: int  # the machine of the server's first node

    @property
    def service(self) -> str:
        """``server-0``, or ``server-0-node-1``"""
        name = f"{self.process.name}-{self.replica}"
        return f"{name}-node-{self.node}" if self.node else name


class Machines(NamedTuple):
    """All machines of a plan, and who listens where."""

    launch: Launch
    parts: list[Placed]

    @property
    def number(self) -> int:
        """How many machines there are."""
        return max(part.machine for part in self.parts) + 1

    @property
    def heads(self) -> list[Placed]:
        """First nodes: those that listen."""
        return [part for part in self.parts if part.node == 0]

    def host(self, machine: int, service: str) -> str:
        """How others call a service: by its name on one machine, else by its machine's address."""
        return f"${{MACHINE_{machine}:?the IP address of machine {machine}}}" if self.number > 1 else service

    def port(self, part: Placed) -> int:
        """Where a server listens: apart from its neighbours and the router where all share the host's network."""
        apart = self.number > 1 and len(self.heads) > 1
        return part.process.port + (_PORTS_APART * (part.slot + 1) if apart else 0)

    def bootstrap_port(self, part: Placed) -> str:
        """Of a prefill server of SGLang, where neighbours share the host's network; else ""."""
        moved = self.number > 1 and self.launch.engine == SGLANG and part.process.name == "prefill"
        return str(_BOOTSTRAP_PORT + part.slot) if moved else ""


def placed(launch: Launch) -> list[Placed]:
    """Servers on machines, each on the first that has room: ``placed(launch)[0].machine  # 0``"""
    used: list[int] = []  # GPUs of each machine
    services: list[int] = []
    result: list[Placed] = []
    servers = [(process, n) for process in launch.processes if process.gpus for n in range(process.replicas)]
    for process, replica in servers:
        room = launch.gpus_per_node - process.gpus_per_node if process.nodes == 1 else -1  # many nodes: fresh ones
        head = next((n for n, gpus in enumerate(used) if gpus <= room), len(used))
        for node in range(process.nodes):
            machine = head + node
            if machine == len(used):
                used.append(0)
                services.append(0)
            result.append(Placed(process, replica, node, machine, services[machine], used[machine], head))
            used[machine] += process.gpus_per_node if process.nodes == 1 else launch.gpus_per_node
            services[machine] += 1
    return result


def compose_files(launch: Launch) -> dict[str, Manifest]:
    """Each machine's file by its name: ``compose_files(launch)["compose.yaml"]``"""
    accelerator = deployment_data().accelerators.get(launch.vendor)
    mpi = deployment_data().engines[launch.engine].mpi and any(process.nodes > 1 for process in launch.processes)
    if accelerator is None or mpi:
        return {}
    machines = Machines(launch, placed(launch))
    names = ["compose.yaml", *(f"compose.machine-{n}.yaml" for n in range(1, machines.number))]
    return {
        name: Manifest([_document(machines, machine)], _comments(machines, name, machine))
        for machine, name in enumerate(names)
    }


def _document(machines: Machines, machine: int) -> dict[str, Any]:
    """One machine's file."""
    here = [part for part in machines.parts if part.machine == machine]
    services = {part.service: _server(machines, part) for part in here}
    configs = {name: text for part in here for name, text in part.process.files.items()}
    router = _router(machines) if machine == 0 else None
    if router is not None:
        services["router"] = _service(machines, router, container_command(router, router.argv, {}))
        waits = {part.service: {"condition": "service_healthy"} for part in here if part.node == 0}
        services["router"]["depends_on"] = waits
        configs |= router.files
    if machines.number == 1:
        entry = deployment_data().ports.entry
        services["router" if router else here[0].service]["ports"] = [f"${{PORT:-{entry}}}:{entry}"]
    document: dict[str, Any] = {"name": machines.launch.engine, "services": services, "volumes": {"huggingface": {}}}
    if configs:
        # Addresses in a router's file are variables of Compose; a dollar of any other text is its own.
        document["configs"] = {name: {"content": text} for name, text in configs.items()}
    return document


def _comments(machines: Machines, file: str, machine: int) -> list[str]:
    """How to start it, and what is yours to fill in."""
    launch, many = machines.launch, machines.number > 1
    images = deployment_data().engines[launch.engine]
    before = [f"MACHINE_{n}=ADDRESS" for n in range(machines.number)] if many else []
    before += ["IMAGE=NAME"] if not images.docker_hub or launch.vendor not in images.images else []
    lines = [f"{launch.model} with {launch.engine}: {' '.join([*before, 'docker compose -f', file, 'up'])}"]
    if many:
        lines.append(
            f"Machine {machine} of {machines.number}, from 0; each machine runs "
            "its own file, all with the same addresses."
        )
    names = ["MODEL", "EXTRA_ARGS (for every server)", "IMAGE", "HF_TOKEN", "HF_CACHE", *([] if many else ["PORT"])]
    lines.append(f"Set in the environment to change them: {', '.join(names)}.")
    if not images.docker_hub:
        lines.append(f"IMAGE is {images.image(launch)}, prefixed with the host of NVIDIA's registry.")
    return [*lines, *launch.notes]


def _server(machines: Machines, part: Placed) -> dict[str, Any]:
    """The service of one server, or of one of its nodes."""
    launch, process = machines.launch, part.process
    model = f"${{MODEL:-{launch.model}}}"
    variables = {
        "MODEL": model,
        "PORT": str(machines.port(part)),
        "NODE_RANK": str(part.node),
        "HOST_IP": machines.host(part.machine, part.service),
        "HEAD_IP": machines.host(part.head, part.service),
    }
    argv = process.headless_argv if part.node and process.headless_argv else process.argv
    bootstrap = machines.bootstrap_port(part)
    argv = [*argv, *([_BOOTSTRAP, bootstrap] if bootstrap else [])]
    environment = {"HF_TOKEN": "${HF_TOKEN:-}", "HF_HOME": "/cache", "EXTRA_ARGS": "${EXTRA_ARGS:-}"}
    own = {name for name, value in process.env.items() if machines.number == 1 and value == "$HOST_IP"}
    environment |= {name: filled(value, variables) for name, value in process.env.items() if name not in own}
    if machines.number > 1 and _SIDE_CHANNEL in environment:
        environment[_SIDE_CHANNEL] = str(int(environment[_SIDE_CHANNEL]) + _PORTS_APART * part.slot)
    exports = dict.fromkeys(own, "$(hostname -i)")  # sockets are bound to it, so a service's name will not do
    service = _service(machines, process, container_command(process, argv, variables, extra=True, exports=exports))
    service |= {"environment": environment, "volumes": ["${HF_CACHE:-huggingface}:/cache"]}
    service |= {"ipc": "host", "ulimits": {"memlock": -1, "stack": 67108864}}
    service |= _devices(launch, [str(part.gpu + n) for n in range(process.gpus_per_node)], environment)
    if part.node == 0:
        service["healthcheck"] = _healthcheck(variables["PORT"], process)
    return service


def _router(machines: Machines) -> Process | None:
    """The router with the addresses that servers have here."""
    backends = [
        Backend(
            part.process.name,
            f"{machines.host(part.machine, part.service)}:{machines.port(part)}",
            machines.bootstrap_port(part),
        )
        for part in machines.heads
    ]
    return router_process(machines.launch.engine, backends)


def _service(machines: Machines, process: Process, command: ContainerCommand) -> dict[str, Any]:
    """What servers and routers have in common."""
    service: dict[str, Any] = {"image": _image(machines.launch, process), "restart": "unless-stopped"}
    if command.script:
        service["entrypoint"] = [part.replace("$", "$$") for part in command.entrypoint]
        service["command"] = command.argv
    else:
        service |= {"entrypoint": command.argv[:1], "command": command.argv[1:]}
    if process.files:
        service["configs"] = [{"source": name, "target": f"{FILES}/{name}"} for name in process.files]
    if machines.number > 1:
        service["network_mode"] = "host"
    if process.gpus == 0:
        service["healthcheck"] = _healthcheck(str(process.port), process)
    return service


def _devices(launch: Launch, ids: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """How the service gets its GPUs."""
    accelerator = deployment_data().accelerators[launch.vendor]
    if accelerator.compose_driver:
        device = {"driver": accelerator.compose_driver, "device_ids": ids, "capabilities": ["gpu"]}
        return {"deploy": {"resources": {"reservations": {"devices": [device]}}}}
    environment[accelerator.compose_visible] = ",".join(ids)
    return {"devices": accelerator.compose_devices, "group_add": ["video"], "security_opt": ["seccomp:unconfined"]}


def _healthcheck(port: str, process: Process) -> dict[str, Any]:
    pod = deployment_data().pod
    seconds = pod.startup_period * pod.startup_failures if process.gpus else pod.liveness_period
    return {
        "test": ["CMD-SHELL", f"curl -fsS http://localhost:{port}/health || exit 1"],
        "interval": f"{pod.liveness_period}s",
        "timeout": f"{pod.probe_timeout}s",
        "retries": pod.liveness_failures,
        "start_period": f"{seconds}s",
    }


def _image(launch: Launch, process: Process) -> str:
    """The image, which the environment may replace."""
    data = deployment_data()
    if process.gpus == 0 and process.engine in data.routers:
        return f"${{ROUTER_IMAGE:-{data.routers[process.engine]}}}"
    engine = data.engines[launch.engine]
    image = engine.image(launch)
    return f"${{IMAGE:-{image}}}" if image and engine.docker_hub else "${IMAGE:?the image of the engine}"
