"""The flags that commands share, under the names people know from vLLM and its benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..base.errors import BadValue

if TYPE_CHECKING:
    from ..web.catalogue import Control


MODEL_HELP = (
    "MODEL: a catalogue name, a Hugging Face id, or the path of a config.json, its folder or a network's TOML file."
)


def options(*groups: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Stack groups of options on a command, in the order they are shown."""

    def wrap(function: Any) -> Any:
        for option in reversed([o for group in groups for o in group]):
            function = option(function)
        return function

    return wrap


WORKLOAD = [
    click.option("--batch-size", type=int, help="Sequences at once.  [default: 1]"),
    click.option("--input-len", metavar="N[,N…]", help="Prompt tokens: one number, or one per layer.  [default: 1024]"),
    click.option("--output-len", type=int, help="Tokens of the answer.  [default: 128]"),
    click.option("--prefix-len", type=int, default=0, help="Leading prompt tokens that are already in the cache."),
    click.option("--beam-width", type=int, help="Beams per sequence; they share the prompt's cache.  [default: 1]"),
    click.option("--turns", metavar="IN:OUT,…", help="A conversation: prompts and answers over one growing context."),
    click.option("--images", metavar="NxHxW", help="Images in every request, for models that see: 1x896x896."),
    click.option("--usecase", help="Typical lengths, batch and beams by name: chatbot, summarization, code …"),
]
_GPU = "A name, a TOML file, or name:key=value,… to change figures."
_FRONTEND = "Where the clock stands: in-process, or at an http client."
DEVICE = [
    click.option("--gpu", default="h100-sxm", help=_GPU),
    click.option("--frontend", default="in-process", help=_FRONTEND),
]
LAYOUT = [
    click.option("--engine", help="vllm, sglang, trtllm, hf, or roofline: the speed of light.  [default: vllm]"),
    click.option("-tp", "--tensor-parallel-size", type=int, default=1, help="GPUs that share every layer."),
    click.option("-pp", "--pipeline-parallel-size", type=int, default=1, help="Stages that share the layers."),
    click.option("-dp", "--data-parallel-size", type=int, default=1, help="Replicas of the attention (or the model)."),
    click.option("--enable-expert-parallel", is_flag=True, help="Spread the experts over all tp × dp ranks."),
    click.option("-sp", "--sequence-parallel", is_flag=True, help="Norms and residuals split over tp ranks, too."),
    click.option("-dcp", "--decode-context-parallel-size", type=int, default=1, help="Ranks of tp that share the KV."),
    click.option("--micro-batches", type=int, default=0, help="In the pipeline; 0: as many as stages."),
    click.option("--nodes", type=int, help="Machines.  [default: as many as the layout needs]"),
    click.option("--gpus-per-node", type=int, help="GPUs of a machine.  [default: the device's usual]"),
    click.option("--overlap", type=float, default=0.0, help="Share of communication that runs behind computing."),
    click.option("--interconnect", help="Which link joins the GPUs: nvlink, pcie …  [default: the device's best]"),
    click.option("--efficiency", metavar="X", help="Share of peak: 0.6, or flops=0.7,hbm=0.85,intra=0.8,inter=0.7."),
    click.option("--profile", metavar="FILE", help="Kernels that inferometer profile measured or imported."),
    click.option("--calibration", metavar="FILE", help="What validate --write-calibration made of your measurements."),
]
MACHINE = [*DEVICE, *LAYOUT]
SERVER = [
    click.option("--gpu", default="h100-sxm", help=_GPU),
    click.option("--frontend", default="http", help=_FRONTEND),
    *LAYOUT,
]
LIVE = [
    click.option("--gpu", help="Compare with what is predicted for it.  [default: measure only]"),
    click.option("--frontend", default="http", help=_FRONTEND),
    *LAYOUT,
]
METHODS = [
    click.option("--speculative-config", metavar="JSON", help='{"method": "mtp", "num_speculative_tokens": 1, …}'),
    click.option("--lora-rank", type=int, help="Low-rank adapters of this rank."),
    click.option("--lora-targets", metavar="OP,…", help="Products that have adapters.  [default: attention and MLP]"),
    click.option("--lora-adapters", type=int, default=1, help="Different adapters in a batch."),
    click.option("--enable-chunked-prefill", is_flag=True, help="Also price a step that decodes and prefills at once."),
    click.option("--cpu-offload-gb", type=float, default=0.0, help="GB of weights per GPU kept in host memory."),
]
NUMBERS = [
    click.option("-q", "--quantization", help="bf16 fp8 fp8-block int8 w4a16 mxfp4 nvfp4 …  [default: the config's]"),
    click.option("--dtype", default="auto", help="Of activations and plain weights: bf16, fp16, fp32."),
    click.option("--kv-cache-dtype", default="auto", help="bf16, fp8, int8 …"),
    click.option("--norm-dtype", help="Of the norms' weights.  [default: --dtype]"),
    click.option("--attention", help="flash, or eager: scores go through memory.  [default: the engine's]"),
    click.option("--fusion/--no-fusion", default=None, help="Element-wise operators ride on their neighbours."),
    click.option("--routing-skew", type=float, default=0.0, help="0: experts are chosen evenly; 1: always the same."),
]
ENGINE = [
    click.option("--max-model-len", type=int, help="Longest sequence.  [default: the model's]"),
    click.option("--max-num-batched-tokens", type=int, help="Token budget of a step.  [default: the engine's]"),
    click.option("--max-num-seqs", type=int, help="Sequences of a step.  [default: the engine's]"),
    click.option("--max-cudagraph-capture-size", type=int, help="Tokens of the largest step that CUDA graphs replay."),
    click.option(
        "--gpu-memory-utilization", type=float, help="Share of memory the engine takes.  [default: the engine's]"
    ),
    click.option("--block-size", type=int, help="Tokens per KV block.  [default: the engine's]"),
    click.option("--hf-token", help="For gated configs; HF_TOKEN works too."),
]
TRAINING = [
    click.option("--gpu", default="h100-sxm", help="A name, a TOML file, or name:key=value,… to change figures."),
    click.option("--engine", default="megatron", help="Whose kernels: megatron, or roofline: the speed of light."),
    click.option("--global-batch-size", type=int, help="Sequences of a step.  [default: one micro-batch per replica]"),
    click.option("--micro-batch-size", type=int, default=1, help="Sequences that a replica runs at once."),
    click.option("--seq-len", metavar="N[,N…]", help="Tokens a sequence, or one number per layer.  [default: 2048]"),
    click.option("-dp", "--data-parallel-size", type=int, default=1, help="Replicas of the model."),
    click.option("-tp", "--tensor-parallel-size", type=int, default=1, help="GPUs that share every layer."),
    click.option("-pp", "--pipeline-parallel-size", type=int, default=1, help="Stages that share the layers."),
    click.option("-sp", "--sequence-parallel", is_flag=True, help="Norms and residuals split over tp ranks, too."),
    click.option("--enable-expert-parallel", is_flag=True, help="Spread the experts over all tp × dp ranks."),
    click.option("--interleave", type=int, default=1, help="Virtual stages of every pipeline stage."),
    click.option("--zero", type=int, default=0, help="Replicas share: 1 optimizer, 2 and gradients, 3 and weights."),
    click.option("--recompute", default="none", help="none, selective (attention's core) or full (every layer)."),
    click.option("--optimizer", default="adamw", help="adamw, sgd or adafactor."),
    click.option("--precision", default="bf16", help="Of the products: bf16, fp16, fp8, fp32 …"),
    click.option("--grad-dtype", default="fp32", help="In which gradients are accumulated and summed."),
    click.option("--dropout", is_flag=True, help="With dropout, as models had it: its masks are kept."),
    click.option("--attention", help="flash, or eager: scores go through memory.  [default: flash]"),
    click.option("--tokens", type=float, help="Of the whole training, for days and cost: 1e12."),
    click.option("--efficiency", metavar="X", help="Share of peak: 0.6, or flops=0.7,hbm=0.85,intra=0.8,inter=0.7."),
    click.option("--nodes", type=int, help="Machines.  [default: as many as the layout needs]"),
    click.option("--gpus-per-node", type=int, help="GPUs of a machine.  [default: the device's usual]"),
    click.option("--overlap", type=float, help="Share of communication behind computing.  [default: dp 0.9, tp 0.5]"),
    click.option("--interconnect", help="Which link joins the GPUs: nvlink, pcie …  [default: the device's best]"),
    click.option("--routing-skew", type=float, default=0.0, help="0: experts are chosen evenly; 1: always the same."),
    click.option("--hf-token", help="For gated configs; HF_TOKEN works too."),
]


def named(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """A file or folder that is named has a name."""
    if value is not None and not value.strip():
        raise BadValue(f"{option.opts[-1]} needs the name of a {'folder' if option.name == 'plot' else 'file'}")
    return value


def one_form(context: click.Context, option: click.Parameter, value: bool) -> bool:
    """JSON or CSV: whichever flag comes second is refused."""
    forms = context.meta.setdefault("forms", [])
    if value and forms:
        raise BadValue(f"{forms[0]} and {option.opts[0]} are two forms of one result: give one of them")
    forms += [option.opts[0]] if value else []
    return value


OUTPUT = [
    click.option("--json", "as_json", is_flag=True, callback=one_form, help="JSON to stdout."),
    click.option("--csv", "as_csv", is_flag=True, callback=one_form, help="CSV to stdout."),
    click.option("-o", "--output", metavar="FILE", callback=named, help="Write there instead."),
]


def one_gpu(verb: str, text: str) -> str:
    """The only GPU of a list: ``one_gpu("analyze", "h100-sxm,")  # 'h100-sxm'``"""
    from ..specs.catalog import gpu_names

    found = gpu_names(text)
    if len(found) > 1:
        raise BadValue(f"{verb} looks at one GPU type at a time; give one name to --gpu")
    return found[0]


# ------------------------------------------------------------------ traffic
# Where requests come from: the flags of ``simulate`` and ``bench``; what they mean says `serving.traffic`.


_LENGTH = "a number, or how it varies: uniform:min=…,max=… lognormal:mean=…,std=… zipf:a=…,min=…,max=…"
TRAFFIC = [
    click.option("--trace", metavar="FILE", help="Requests as CSV or JSON lines: ours, Azure, Mooncake, BurstGPT …"),
    click.option("--num-prompts", type=int, help="Requests; of a trace, its first ones.  [default: 1000, or all]"),
    click.option("--request-rate", type=float, help="Requests a second; inf: at once.  [default: inf, or a trace's]"),
    click.option("--burstiness", type=float, default=1.0, help="1: Poisson; less comes in bursts, more is more even."),
    click.option("--input-len", metavar="N|DIST", help=f"Prompt tokens: {_LENGTH}.  [default: 1024]"),
    click.option("--output-len", metavar="N|DIST", help="Tokens of the answer, likewise.  [default: 128]"),
    click.option("--prefix-len", type=int, default=0, help="First prompt tokens that all requests share."),
    click.option("--turns", metavar="N|DIST", help="Turns of a conversation; --input-len is what each adds."),
    click.option("--think-time", metavar="S|DIST", help="Seconds between an answer and the user's next request."),
    click.option("--max-concurrency", type=int, help="Requests under way at most: a new one waits for an end."),
    click.option("--seed", type=int, default=0, help="Of everything that chance decides."),
]


# ------------------------------------------------------------------ controls
# The flags of ``analyze`` as the controls of a page: one help text for both.


NOT_SHOWN = ("profile", "calibration", "hf_token")  # they name files and secrets of this machine


def flags() -> dict[str, click.Option]:
    """The options that describe a plan, by keyword: ``flags()["batch_size"].help``"""

    def holder() -> None:
        """Has the options."""

    options(WORKLOAD, MACHINE, METHODS, NUMBERS, ENGINE)(holder)
    found = {option.name: option for option in reversed(holder.__click_params__)}  # type: ignore[attr-defined]
    return {str(name): option for name, option in found.items() if name not in NOT_SHOWN}


def controls() -> list[Control]:
    """The controls of the page, in its order."""
    from ..web.catalogue import controls as made

    return made(flags())
