"""``inferometer mock``: OpenAI's API at the predicted speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..base.errors import BadValue
from ..base.extras import require_library
from ..specs.arguments import arguments, checked
from ..specs.command_args import MockArgs, ServedPlanArgs, ServingArgs
from .options import MODEL_HELP, ArgumentOption, Command, model_argument, one_gpu, options, plan_options, schema_options
from .output import note
from .streams import echo

if TYPE_CHECKING:
    from ..web.mock.mock_server import MockServer

_EXAMPLES = (
    "llama-3.1-8b --gpu h200 --port 8000",
    "Qwen/Qwen3-32B --gpu h100-sxm -tp 2 --max-model-len 32768 --served-model-name qwen --api-key secret",
)
_NOT_HERE = ("prefill_replicas", "decode_replicas", "autoscale")
_SERVING = tuple(name for name in arguments(ServingArgs) if name not in arguments(ServedPlanArgs))
_INPUT_LEN = 1024  # tokens of a typical prompt, by which the KV cache of sliding windows is sized


@click.command(cls=Command, epilog=MODEL_HELP, examples=_EXAMPLES)
@model_argument()
@click.option(
    "--host", cls=ArgumentOption, group="Server", default="127.0.0.1", help="Address to listen on; 0.0.0.0: everyone's."
)
@click.option("--port", cls=ArgumentOption, group="Server", type=int, default=8000, help="Port; 0: any free port.")
@click.option(
    "--api-key",
    cls=ArgumentOption,
    group="Server",
    envvar="VLLM_API_KEY",
    secret=True,
    help="Key that clients must send; or set VLLM_API_KEY, which process lists do not show.",
)
@options(schema_options(MockArgs))
@click.option(
    "--log-format",
    cls=ArgumentOption,
    group="Server",
    type=click.Choice(["text", "json", "off"]),
    default="off",
    help="Log a line per request to standard error.",
)
@options(schema_options(ServingArgs, skip=(*arguments(ServedPlanArgs), *_NOT_HERE)), plan_options(ServedPlanArgs))
def mock(model: str, gpu: str | None, host: str, port: int, api_key: str | None, log_format: str, **plan: Any) -> int:
    """Serve OpenAI's API with the predicted timing of a deployment: completions and chats of filler words.

    For load tests, routers, autoscalers and CI of applications without a GPU. Ctrl-C stops it.
    """
    require_library("mock", "uvicorn")
    from ..web.http_server import ends_well, is_loopback, listening, own_names, serve
    from ..web.mock.mock_server import LIMITS

    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key != ""):
        raise BadValue("`api_key` must be printable ASCII without spaces around it")
    device = one_gpu("mock", gpu)
    with listening(host, port) as door, ends_well():
        app, machine = application(model, device, api_key=api_key, log=log_format, **plan)
        name = app.served.names[0]
        local = is_loopback(door.getsockname()[0])
        addresses = [_address(one, door.getsockname()[1]) for one in ([host] if local else own_names(host))]
        echo(f"{name} as on {machine}: {addresses[0]}/v1 (Ctrl-C stops it)")
        for address in addresses[1:]:
            echo(f"  also {address}/v1")
        if not local:
            whom = "Whoever has the API key" if api_key else "Anyone"
            echo(
                f"{whom} who can reach this machine can use it{'.' if api_key else ': there is no API key.'}", err=True
            )
        serve(app, door, LIMITS.of_this_process())
    echo("ended", err=True)
    return 0


def application(
    model: str, gpu: str, *, api_key: str | None = None, log: str = "off", **plan: Any
) -> tuple[MockServer, str]:
    """The ASGI application that `mock` serves, and what it stands for: ``application("llama-3.1-8b", "h200")``"""
    import numpy as np

    from ..serving.deployment import ServingOptions
    from ..serving.live_fleet import LONGEST, LiveFleet
    from ..serving.simulate import build_deployment
    from ..serving.synthetic import parse_distribution
    from ..serving.trace import Trace
    from ..web.mock.mock_server import MockServer
    from ..web.mock.openai_api import Served

    server = checked(MockArgs, {name: plan.pop(name) for name in arguments(MockArgs) if name in plan})
    lengths = parse_distribution("output_len", server.output_len).draw_int(np.random.default_rng(server.seed), 4096)
    typical = Trace(input_tokens=np.array([_INPUT_LEN]), output_tokens=np.array([int(lengths.mean())]))
    given = {name: plan.pop(name) for name in _SERVING if name in plan}
    blocks = given.pop("num_gpu_blocks_override", None)
    options = ServingOptions(**{"scheduler": "", **given})
    pools, options = build_deployment(model, gpu, typical, options, num_gpu_blocks_override=blocks, **plan)
    pool = pools[0][1]
    if pool.reason:  # a plan that cannot work is a result
        echo(f"infeasible: {pool.reason}", err=True)
        raise click.exceptions.Exit(1)
    fleet = LiveFleet(pools, options)
    fleet.warm_up()
    for warning in pool.warnings:
        note(warning)
    longest = pool.bound_plan.plan.max_model_len or LONGEST
    room = pool.kv_cache_tokens - pool.bound_plan.plan.block_size
    if room < longest:
        note(f"the KV cache holds {room:,} tokens: longer requests are refused, though the model takes {longest:,}")
    names = tuple(name.strip() for name in (server.served_model_name or model).split(",") if name.strip())
    if not names:
        raise BadValue("`served_model_name` must have a name")
    engine, gpus = pool.bound_plan.engine, pool.bound_plan.plan.gpus
    app = MockServer(
        fleet,
        Served(names, max(2, min(longest, room))),
        lengths.tolist(),
        speed=server.speed,
        api_key=api_key,
        prompt_details=server.enable_prompt_tokens_details,
        version=engine.version,
        log=log,
    )
    return (
        app,
        f"{gpus} × {pool.bound_plan.device.label or gpu}, {engine.label or engine.name} {engine.version}".strip(),
    )


def _address(name: str, port: int) -> str:
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"
