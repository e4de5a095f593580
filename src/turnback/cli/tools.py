"""`turnback ui`, `config`, `gc` and `pack`: what is not about one job."""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from turnback.cli.command import argument, command, flag, number_option
from turnback.cli.context import Cli, ExitCode
from turnback.cli.output import Cell, Column, Value
from turnback.cli.parameters import script_path, yes_option
from turnback.core.units import format_size
from turnback.errors import ConfigurationError, StillNeededError, StorageError

if TYPE_CHECKING:
    from turnback.launch.packing import Packed
    from turnback.launch.runs import Runs
    from turnback.operations.garbage import Findings, Garbage

# -- ui

_SHORTEST_TOKEN = 16


@command("ui", "turnback ui", "turnback ui --port 0 --read-only", "turnback ui --open")
@click.option("--host", metavar="ADDRESS", help="Listen on this address instead of web.address.")
@number_option(
    "--port",
    least=0,
    most=65535,
    help="Listen on this port instead of web.port; 0 for any free port.",
)
@flag("--read-only", help="Disable all changes.")
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read the token from this file.",
)
@click.option(
    "--allowed-host",
    metavar="NAME",
    multiple=True,
    help="Host name that browsers can use for the dashboard. Can be repeated.",
)
@flag("--open", "browse", help="Open the dashboard in a browser.")
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

    Prints its address and serves until Ctrl-C. On this machine, everyone can read; changes need the
    token in the address. Bound to another address, everything needs the token. With --json, prints
    the address as a JSON document once the dashboard serves.
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

    site = Site(
        jobs=cli.jobs,
        token=token,
        host=host if host is not None else configuration.value("web.address"),
        port=port if port is not None else configuration.value("web.port"),
        read_only=read_only or configuration.value("web.read-only"),
        root_path=configuration.value("web.root-path") or "",
        allowed_hosts=allowed_host,
        runs_dir=cli.runs_dir,
        savepoints_dir=configuration.value("state.savepoints.dir"),
    )
    with tempfile.TemporaryDirectory(prefix="turnback-ui-") as private:

        def ready(url: str) -> None:
            address = f"{url}?token={token}"
            _print_address(cli, url, token, address)
            if browse:
                _open_browser(cli, Path(private), address)

        serve(site, on_ready=ready)


def _read_token(path: Path) -> str:
    """Return the token in a file, which its owner alone may read."""
    try:
        token = path.read_text("utf-8").strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read --token-file {path}: {error}") from error
    short = len(token) < _SHORTEST_TOKEN
    if short or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"--token-file {path} must contain one word of at least {_SHORTEST_TOKEN} "
            "characters, for example from `openssl rand -hex 32`"
        )
    if mode & 0o077:
        raise ConfigurationError(f"{path} is readable by others: run chmod 600 {path}")
    return token


def _print_address(cli: Cli, url: str, token: str, address: str) -> None:
    if cli.json:
        cli.out.document({"url": url, "token": token, "address": address})
    else:
        cli.out.line(address)
        cli.out.hint("Press Ctrl-C to stop.")
    sys.stdout.flush()


def _open_browser(cli: Cli, private: Path, address: str) -> None:
    """Open a file that leads to the address: everybody can read the command line of a browser."""
    import webbrowser

    page = private / "turnback.html"
    page.touch(mode=0o600)
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">\n')
    if not webbrowser.open(page.as_uri()):
        cli.out.message("Could not open a browser: open the address yourself.")


# -- config


@command(
    "config",
    "turnback config",
    "turnback config savepoints --doc",
    "turnback config --set-only -D state.checkpoints.num-retained=3",
)
@argument("text", "[TEXT]", help="Only keys that contain this text.")
@flag("--set-only", help="Omit keys that have their default.")
@flag("--doc", help="Also print the description of each key.")
def config(cli: Cli, text: str | None, set_only: bool, doc: bool) -> None:
    """Show the configuration: every key, its value and the origin of the value.

    In ascending precedence: defaults, turnback.yaml (or the file that TURNBACK_CONF names),
    environment variables, the program, and -D. Values set by a program are known only when it runs:
    the dashboard shows them for a running job.
    """
    from turnback.views.model import ConfigRow

    rows = [
        ConfigRow(key=e.key, value=e.value_text, origin=e.origin, doc=e.doc)
        for e in cli.configuration.entries()
        if (text or "").lower() in e.key and (e.is_set or not set_only)
    ]
    if cli.json:
        cli.out.document(rows)
        return
    table: list[list[Value]] = []
    for row in rows:
        style = "dim" if row.origin == "default" else "bold"
        value = None if row.value is None else Cell(row.value, style)
        table.append([row.key, value, Cell(row.origin, style), *([row.doc] if doc else [])])
    cli.out.table(("key", "value", "origin", *(("description",) if doc else ())), table)


# -- gc

_COLUMNS: tuple[Column[Garbage], ...] = (
    Column("what", lambda item, out: item.kind.value),
    Column("job", lambda item, out: item.job),
    Column("size", lambda item, out: out.size(item.bytes), right=True),
    Column("path", lambda item, out: item.path),
    Column("why", lambda item, out: item.reason),
)


@command("gc", "turnback gc --dry-run", "turnback gc --yes --json")
@flag("--dry-run", help="Only show what would be deleted.")
@yes_option
def gc(cli: Cli, dry_run: bool, yes: bool) -> ExitCode | None:
    """Delete files that are no longer needed.

    Deletes files that no checkpoint references, files that were being written when a process died,
    abandoned savepoints, and records of savepoints that no longer exist; on this machine also
    unused local stores of jobs, and the files of ended launches, including their logs. Considers
    only jobs below the root and their launches; a launch that never became a job belongs to the
    root it was started with. Skips jobs that are running or may be running.
    """
    from turnback.launch.runs import Runs

    runs = Runs(cli.runs_dir)
    findings = _scan(cli, runs)
    if not cli.json:
        cli.out.records(_COLUMNS, findings.garbage, "Nothing to delete.")
        for skipped in findings.skipped:
            cli.out.message(f"skipped: {skipped.path}: {skipped.reason}", "yellow")
    left: list[str] = []
    if findings.garbage and not dry_run:
        cli.confirm(f"Remove {_amount(findings.garbage)}?", yes)
        left = _remove(cli, findings.garbage, runs)
    if cli.json:
        about = {"garbage": findings.garbage, "skipped": findings.skipped}
        cli.out.document(about | {"removed": not dry_run, "left": left})
    return ExitCode.FAILED if left else None


def _scan(cli: Cli, runs: Runs) -> Findings:
    from turnback.operations.garbage import Findings, Skipped, scan

    local_dir = cli.configuration.value("state.backend.local-dir")
    finished = runs.finished(cli.jobs.root)
    findings = scan(
        cli.jobs,
        cli.configuration.value("state.savepoints.dir"),
        finished.paths,
        [local_dir] if local_dir is not None else [],
    )
    if not finished.unclear:
        return findings
    names = ", ".join(path.name for path in finished.unclear)
    reason = f"the root of these launches is unknown, so delete them yourself: {names}"
    skipped = Skipped(path=str(runs.root), reason=reason)
    return Findings(garbage=findings.garbage, skipped=(*findings.skipped, skipped))


def _remove(cli: Cli, garbage: Sequence[Garbage], runs: Runs) -> list[str]:
    """Remove one after the other; returns the paths of those that could not be removed."""
    from turnback.operations.garbage import remove

    left = []
    for item in garbage:
        try:
            remove(item, cli.storage_options, runs.remove)
        except (StillNeededError, StorageError) as error:
            cli.out.message(f"skipped: {item.path}: {error}", "yellow")
            left.append(item.path)
    removed = [item for item in garbage if item.path not in left]
    cli.out.message(f"Removed {_amount(removed)}.")
    return left


def _amount(garbage: Sequence[Garbage]) -> str:
    things = "1 thing" if len(garbage) == 1 else f"{len(garbage)} things"
    return f"{things} of {format_size(sum(item.bytes for item in garbage))}"


# -- pack


@command("pack", "turnback pack job.py", "turnback pack -o /data/job-env.tar.gz --json job.py")
@argument("script", "[SCRIPT]", help="Also pack the modules and packages beside this file.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="job-env.tar.gz",
    type=click.Path(path_type=Path),
    help="Archive to write. Default: job-env.tar.gz.",
)
def pack(cli: Cli, script: str | None, output: Path) -> None:
    """Pack the Python environment for executors on other machines.

    Writes the virtual environment that runs this command, with editable installations as they are
    now, into an archive that Spark unpacks on each executor, and prints the settings for it. Omits
    the jars of Spark, which executors have. The interpreter itself is not packed: each machine
    needs the same one at the same path.
    """
    from turnback.launch.packing import current_environment
    from turnback.launch.packing import pack as write

    program = None if script is None else Path(script_path(script))
    with cli.out.bytes_bar("packing") as progress:
        packed = write(current_environment(), output.absolute(), program, progress)
    for warning in packed.warnings:
        cli.out.message(f"warning: {warning}", "yellow")
    if cli.json:
        cli.out.document(packed)
    else:
        _print_packed(cli, packed)


def _print_packed(cli: Cli, packed: Packed) -> None:
    cli.out.fields(
        [
            ("archive", packed.path),
            ("size", cli.out.size(packed.bytes)),
            ("interpreter", packed.python),
            ("sources", ", ".join(packed.modules)),
        ]
    )
    cli.out.line(" ".join(f"-D {quote(f'{k}={v}')}" for k, v in packed.settings.items()))
