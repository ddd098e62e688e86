"""``inferometer web``: the page in the browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ..base.errors import BadValue
from ..base.extras import require_library
from .options import ArgumentOption, Command
from .streams import echo

if TYPE_CHECKING:
    from ..web.app import WebApp

TOKEN_VARIABLE = "INFEROMETER_WEB_TOKEN"
_TOKEN = re.compile(r"[\w.~+/=-]{16,512}", re.ASCII)
_SHORTEST, _LONGEST = 0.1, 8760.0  # hours that results are kept

_EXAMPLES = ("--open", "--host 0.0.0.0 --port 8000")


@click.command(cls=Command, examples=_EXAMPLES)
@click.option(
    "--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 accepts other machines, which need the token."
)
@click.option("--port", type=int, default=8642, help="Port to listen on; 0: any free port.")
@click.option("--open/--no-open", "show", default=False, help="Open the page in a browser on this machine.")
@click.option(
    "--token",
    cls=ArgumentOption,
    secret=True,
    envvar=TOKEN_VARIABLE,
    help=f"Token that clients must send; better set as {TOKEN_VARIABLE}, which process lists do not show.",
)
@click.option("--no-token", is_flag=True, help="Accept any client that can reach the host.")
@click.option(
    "--allowed-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Host name that clients use, for example behind a proxy.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json", "off"]),
    default="text",
    show_default=True,
    help="Log a line per request to standard error.",
)
@click.option(
    "--keep-results",
    type=float,
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Hours to keep the results of searches and simulations.",
)
def web(
    host: str,
    port: int,
    show: bool,
    token: str | None,
    no_token: bool,
    names: tuple[str, ...],
    log_format: str,
    keep_results: float,
) -> int:
    """Start the web interface on this machine: the plan on the left, its results on the right. Ctrl-C stops it."""
    from ..web.http_server import ends_well, is_loopback, listening, own_names, serve

    require_library("web", "starlette", "uvicorn", "plotly")
    if not _SHORTEST <= keep_results <= _LONGEST:
        raise BadValue(f"`keep_results` must be between {_SHORTEST:g} and {_LONGEST:,g} hours, not {keep_results:g}")
    with listening(host, port) as door, ends_well():
        local = is_loopback(door.getsockname()[0])
        _check_token(host, token, no_token, local)
        token = None if no_token else token
        reached = [] if local else own_names(host)
        addresses = [_address(name, door.getsockname()[1]) for name in reached or [host]]
        app = application(host, names=[*reached, *names], token=token, log=log_format, kept_hours=keep_results)
        try:
            _announce(addresses, token, bool(reached))
            if show:
                import webbrowser

                webbrowser.open_new_tab(addresses[0])
            serve(app, door)
        finally:
            app.stop()
    echo("ended", err=True)
    return 0


def application(
    host: str = "127.0.0.1",
    *,
    names: list[str] | None = None,
    token: str | None = None,
    workers: int | None = None,
    log: str = "off",
    kept_hours: float = 24.0,
) -> WebApp:
    """The ASGI application that `web` serves."""
    from ..web.app import create_app
    from ..web.catalogue import controls

    names = names or []
    return create_app(controls(), host, names=names, token=token, workers=workers, log=log, kept_hours=kept_hours)


def _check_token(host: str, token: str | None, no_token: bool, local: bool) -> None:
    if no_token and token and click.get_current_context().get_parameter_source("token") != ParameterSource.ENVIRONMENT:
        raise BadValue("`token` and `no_token` exclude each other")
    if token is not None and not no_token and not _TOKEN.fullmatch(token):
        raise BadValue(
            "`token` must have 16 letters or more, of A-Z a-z 0-9 . _ ~ + / = -, such as openssl rand -hex 16 makes"
        )
    if not (local or token or no_token):
        raise BadValue(
            f"`host` {host} accepts every machine that can reach this one: give `token` ({TOKEN_VARIABLE} in the "
            "environment), or `no_token` if you trust the network"
        )


def _address(name: str, port: int) -> str:
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/"


def _announce(addresses: list[str], token: str | None, public: bool) -> None:
    first, *others = addresses
    echo(f"inferometer runs at {first} (Ctrl-C stops it)")
    for address in others:
        echo(f"  also {address}")
    if public and token is None:
        echo("Anyone who can reach these addresses can use it: there is no token.", err=True)
    if token is not None:
        echo(f"It requires the token: open {first}?token=TOKEN once", err=True)
