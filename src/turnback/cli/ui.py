"""`turnback ui`."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from turnback.cli.context import Cli
from turnback.cli.verb import Panel, Verb, flag
from turnback.core.errors import ConfigurationError

_SHORTEST = 16


def ui(
    cli: Cli,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="ADDRESS", help="Listen here instead of web.address."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            min=0,
            max=65535,
            help="Listen on this port instead of web.port; 0 for any that is free.",
        ),
    ] = None,
    read_only: Annotated[
        bool, flag("--read-only", help="Only show; nobody can change anything.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Use the token in this file."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host", metavar="NAME", help="A name browsers may use; may be repeated."
        ),
    ] = None,
    open: Annotated[bool, flag("--open", help="Open it in a browser.")] = False,
) -> None:
    """Start the dashboard.

    Prints its address and serves until Ctrl-C. On this machine everyone may look; the token in the
    address lets you press buttons. Bound to another address, the token is needed for everything.
    With --json the address is printed as a JSON document once it serves.
    """
    configuration = cli.configuration
    token = secrets.token_urlsafe(32) if token_file is None else _read_token(token_file)
    directory = configuration.value("state.savepoints.dir")

    def ready(url: str) -> None:
        _tell(cli, url, token, open)

    from turnback.web.server import serve

    serve(
        cli.jobs,
        token=token,
        host=host if host is not None else configuration.value("web.address"),
        port=port if port is not None else configuration.value("web.port"),
        read_only=read_only or configuration.value("web.read-only"),
        ui_root_path=configuration.value("web.root-path") or "",
        allowed_hosts=allowed_host or (),
        runs_dir=cli.runs_dir,
        savepoints_dir=directory,
        on_ready=ready,
    )


def _read_token(path: Path) -> str:
    """The token in a file, whose owner alone may read it."""
    try:
        token = path.read_text("utf-8").strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--token-file {path} cannot be read: {error}") from error
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"--token-file {path} must hold one word of at least {_SHORTEST} characters, such as "
            "`openssl rand -hex 32` prints"
        )
    if mode & 0o077:
        raise ConfigurationError(f"others may read {path}: chmod 600 {path}")
    return token


def _tell(cli: Cli, url: str, token: str, browse: bool) -> None:
    import sys

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
            cli.out.say("No browser could be opened: open the address yourself.")


VERB = Verb(
    "ui",
    ui,
    Panel.TOOLS,
    examples=("turnback ui", "turnback ui --port 0 --read-only", "turnback ui --open"),
)
