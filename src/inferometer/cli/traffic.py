"""Where requests come from: the flags of ``simulate`` and ``bench``; what they mean says `serving.traffic`."""

from __future__ import annotations

import click

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
