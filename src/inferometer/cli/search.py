"""``inferometer search``: which deployment to run on some GPUs, and how to start it."""

from __future__ import annotations

from typing import Any

import click

from ..base.errors import BadValue
from .options import MODEL_HELP, OUTPUT, named, options
from .output import deliver, show_rich, table_csv

_LIST = "one or several, with commas"
WANTED = [
    click.option("--gpu", default="h100-sxm", metavar="NAME,…", help="GPU types to compare."),
    click.option("--num-gpus", type=int, help="GPUs of each type.  [default: --nodes, or one node]"),
    click.option("--nodes", type=int, help="Machines, instead of --num-gpus."),
    click.option("--gpus-per-node", type=int, help="GPUs of a machine.  [default: the device's usual]"),
    click.option("--input-len", metavar="N|DIST", help="Prompt tokens, or how they vary.  [default: 1024]"),
    click.option("--output-len", metavar="N|DIST", help="Tokens of the answer, likewise.  [default: 128]"),
    click.option("--prefix-len", type=int, default=0, help="First prompt tokens that all requests share."),
    click.option("--trace", metavar="FILE", help="Requests as they came, instead of lengths."),
    click.option("--num-prompts", type=int, help="The first so many requests of a trace.  [default: all]"),
    click.option("--request-rate", type=float, help="Requests a second to carry.  [default: as many as hold]"),
    click.option("--burstiness", type=float, default=1.0, help="1: Poisson; less comes in bursts, more is more even."),
    click.option("--goodput", multiple=True, metavar="METRIC:MS", help="What a good request keeps: ttft:500,tpot:50."),
    click.option("--goodput-share", type=float, default=0.9, help="Of the requests that must keep the limits."),
    click.option("--objective", default="throughput", help="throughput, cost, latency or energy."),
]
SPACE = [
    click.option("--mode", default="both", help="aggregated, disaggregated (pools that read and answer) or both."),
    click.option("-tp", "--tensor-parallel-size", metavar="N,…", help=f"{_LIST}.  [default: all that are legal]"),
    click.option("-pp", "--pipeline-parallel-size", metavar="N,…", help=f"{_LIST}.  [default: all]"),
    click.option("-dp", "--data-parallel-size", metavar="N,…", help="Ranks that meet at the experts.  [default: all]"),
    click.option("--enable-expert-parallel/--no-enable-expert-parallel", default=None, help="[default: both]"),
    click.option("-q", "--quantization", metavar="WORD,…", help="[default: the checkpoint's, and fp8 if fast]"),
    click.option("--kv-cache-dtype", metavar="WORD,…", help="[default: auto,fp8]"),
    click.option("--max-num-batched-tokens", metavar="N,…", help="[default: 2048:16384:x2 and the engine's]"),
    click.option("--max-num-seqs", metavar="N,…", help="[default: 32:512:x2 and the engine's]"),
    click.option("--speculative-config", metavar="JSON", help='{"method": "mtp", "num_speculative_tokens": 1, …}'),
    click.option("--finalists", type=int, default=6, help="Plans that are simulated at most, once one holds."),
]
SETTING = [
    click.option("--engine", help="vllm, sglang, trtllm.  [default: vllm]"),
    click.option("--frontend", default="http", help="Where the clock stands: in-process, or http."),
    click.option("--dtype", default="auto", help="Of activations and plain weights: bf16, fp16."),
    click.option("--interconnect", help="Which link joins the GPUs: nvlink, pcie …  [default: the device's best]"),
    click.option("--efficiency", metavar="X", help="Share of peak: 0.6, or flops=0.7,hbm=0.85,intra=0.8,inter=0.7."),
    click.option("--profile", metavar="FILE", help="Kernels that inferometer profile measured or imported."),
    click.option("--calibration", metavar="FILE", help="What validate --write-calibration made of your measurements."),
    click.option("--gpu-memory-utilization", type=float, help="Share of memory.  [default: the engine's]"),
    click.option("--routing-skew", type=float, default=0.0, help="0: experts are chosen evenly; 1: always the same."),
    click.option("--hf-token", help="For gated configs; HF_TOKEN works too."),
    click.option("--backend", default="processes", help="Where simulations run: processes, dask or ray."),
    click.option("--backend-address", help="A Dask or Ray cluster to use.  [default: one on this machine]"),
    click.option("--jobs", type=int, default=1, help="Simulations at a time."),
    click.option("--seed", type=int, default=0, help="Of everything that chance decides."),
    click.option("--plot", metavar="DIR", callback=named, help="Write the Pareto front there."),
]


@click.command(epilog=MODEL_HELP)
@click.argument("model")
@options(WANTED, SPACE, SETTING, OUTPUT)
def search(
    model: str,
    as_json: bool,
    as_csv: bool,
    output: str | None,
    plot: str | None,
    backend_address: str | None,
    num_prompts: int | None,
    trace: str | None,
    **words: Any,
) -> int:
    """Price every legal plan on some GPUs, simulate the best of them, and say which to run, and why."""
    from ..search.search import search_with_table
    from ..views.progress import progress_bar

    words = {key: value for key, value in words.items() if value is not None}
    words["trace"] = _requests(trace, num_prompts)
    if words["trace"] is None and num_prompts is not None:
        raise BadValue("--num-prompts is of a --trace; a simulation takes as many requests as it needs")
    with progress_bar("searching", None, "steps") as reached:
        steps = [0]

        def step(stage: str, done: int) -> None:
            steps[0] += 1
            reached(steps[0])

        result, table, rejected = search_with_table(model, address=backend_address, progress=step, **words)
    if plot is not None and table is not None:
        from ..views.text.search import write_front

        for path in write_front(result, table, plot):
            click.echo(f"wrote {path}", err=True)
    if as_json:
        import msgspec

        deliver(msgspec.json.format(msgspec.json.encode(result), indent=1), output)
    elif as_csv:
        from ..search.explanation import plan_rows

        deliver(table_csv(plan_rows(table, rejected)), output)
    else:
        from ..views.text.search import shown

        show_rich(shown(result), output)
    if (as_json or as_csv) and not result.feasible:
        click.echo(f"infeasible: {result.reason}", err=True)
    return 0 if result.feasible else 1


def _requests(path: str | None, most: int | None) -> Any:
    """The requests of a trace, or its first ones."""
    if path is None:
        return None
    from ..base.errors import check_int
    from ..serving.trace import first_requests, read_trace

    trace = read_trace(path)
    return first_requests(trace, check_int("--num-prompts", most)) if most is not None else trace
