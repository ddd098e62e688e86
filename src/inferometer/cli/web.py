"""``inferometer web``: the page in the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..base.errors import BadValue

if TYPE_CHECKING:
    from socket import socket

    from ..web.guard import Guard


@click.command()
@click.option("--host", default="127.0.0.1", help="Where to listen; 0.0.0.0 lets other machines in.")
@click.option("--port", type=int, default=8642, help="0: any that is free.")
@click.option("--open/--no-open", "show", default=False, help="Open it in the browser of this machine.")
def web(host: str, port: int, show: bool) -> int:
    """Start the page on this machine: the plan on the left, what it does on the right. Ctrl-C ends it."""
    import uvicorn

    with bound(host, port) as door:
        address = f"http://{f'[{host}]' if ':' in host else host}:{door.getsockname()[1]}/"
        click.echo(f"inferometer is at {address} (Ctrl-C ends it)")
        if show:
            import webbrowser

            webbrowser.open_new_tab(address)
        config = uvicorn.Config(
            application(host), log_level="warning", lifespan="on", server_header=False, timeout_graceful_shutdown=2
        )
        try:
            uvicorn.Server(config).run(sockets=[door])
        except KeyboardInterrupt:
            click.echo("ended", err=True)
    return 0


def application(host: str = "127.0.0.1", workers: int | None = None) -> Guard:
    """The ASGI application that `web` serves."""
    from ..web.app import create_app
    from ..web.catalogue import controls

    return create_app(controls(), host, workers)


def bound(host: str, port: int) -> socket:
    """A socket that listens there; a sentence where that cannot be."""
    import socket as sockets

    if not 0 <= port <= 65535:
        raise BadValue(f"`port` must be between 0 and 65,535, not {port:,}")
    try:
        family, *_, place = sockets.getaddrinfo(host, port, type=sockets.SOCK_STREAM)[0]
        door = sockets.socket(family, sockets.SOCK_STREAM)
        door.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        door.bind(place)
        door.listen(1024)  # a connection before the server is ready waits
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadValue(f"`host` {host} `port` {port} cannot be listened at: {why}") from None
    return door
