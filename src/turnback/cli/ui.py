"""`turnback ui`: the dashboard."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from turnback.cli.command import command, flag, number_option
from turnback.cli.context import Cli
from turnback.core.errors import ConfigurationError

_SHORTEST_TOKEN = 16


@command("ui", "turnback ui", "turnback ui --port 0 --read-only", "turnback ui --open")
@click.option("--host", metavar="ADDRESS", help="Listen here instead of web.address.")
@number_option(
    "--port",
    least=0,
    most=65535,
    help="Listen on this port instead of web.port; 0 for any that is free.",
)
@flag("--read-only", help="Only show; nobody can change anything.")
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Use the token in this file.",
)
@click.option(
    "--allowed-host",
    metavar="NAME",
    multiple=True,
    help="A name browsers may use; may be repeated.",
)
@flag("--open", "browse", help="Open it in a browser.")
def ui(
    cli: Cli,
    host: str | None,
    port: int | None,
    read_only: bool,
    token_file: Path | None,
    allowed_host: Sequence[str],
    browse: bool,
) -> None:
    """Start the dashboard.

    Prints its address and serves until Ctrl-C. On this machine everyone may look; the token in the
    address lets you press buttons. Bound to another address, the token is needed for everything.
    With --json the address is printed as a JSON document once it serves.
    """
    configuration = cli.configuration
    token = secrets.token_urlsafe(32) if token_file is None else _read_token(token_file)

    try:
        from turnback.web.server import serve
        from turnback.web.site import Site
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("turnback"):
            raise
        raise ConfigurationError(
            f"the dashboard needs the package {error.name}: pip install 'turnback[ui]'"
        ) from error

    serve(
        Site(
            jobs=cli.jobs,
            token=token,
            host=host if host is not None else configuration.value("web.address"),
            port=port if port is not None else configuration.value("web.port"),
            read_only=read_only or configuration.value("web.read-only"),
            root_path=configuration.value("web.root-path") or "",
            allowed_hosts=allowed_host,
            runs_dir=cli.runs_dir,
            savepoints_dir=configuration.value("state.savepoints.dir"),
        ),
        on_ready=lambda url: _print_address(cli, url, token, browse),
    )


def _read_token(path: Path) -> str:
    """Return the token in a file, which its owner alone may read."""
    try:
        token = path.read_text("utf-8").strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--token-file {path} cannot be read: {error}") from error
    short = len(token) < _SHORTEST_TOKEN
    if short or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"--token-file {path} must hold one word of at least {_SHORTEST_TOKEN} characters, "
            "such as `openssl rand -hex 32` prints"
        )
    if mode & 0o077:
        raise ConfigurationError(f"others may read {path}: chmod 600 {path}")
    return token


def _print_address(cli: Cli, url: str, token: str, browse: bool) -> None:
    address = f"{url}?token={token}"
    if cli.json:
        cli.out.document({"url": url, "token": token, "address": address})
    else:
        cli.out.line(address)
        cli.out.hint("Press Ctrl-C to stop.")
    sys.stdout.flush()
    if browse:
        import webbrowser

        if not webbrowser.open(address):
            cli.out.message("No browser could be opened: open the address yourself.")
