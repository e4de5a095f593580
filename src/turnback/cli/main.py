"""The program `turnback`: its commands, its errors and its exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile

import click
from click.shell_completion import shell_complete

from turnback.cli.command import SHARED_OPTIONS, SHARED_TITLE, Group, write_options, write_section
from turnback.cli.context import AlreadyPrintedError, ExitCode, exit_code
from turnback.cli.output import Output
from turnback.core.masking import mask_text
from turnback.errors import TurnbackError

COMMANDS = {
    "Run": {
        "run": "run:run",
        "check": "run:check",
    },
    "Look": {
        "list": "jobs:list_jobs",
        "status": "jobs:status",
        "logs": "jobs:logs",
        "checkpoints": "jobs:checkpoints",
        "savepoints": "jobs:savepoints",
        "get": "query:get",
    },
    "Act": {
        "savepoint": "operations:savepoint",
        "stop": "operations:stop",
        "cancel": "operations:cancel",
        "delete": "operations:delete",
        "redrive": "operations:redrive",
        "transactions": "operations:transactions",
        "compact": "operations:compact",
    },
    "Snapshots": {
        "inspect": "snapshots:inspect",
        "query": "query:query",
        "diff": "query:diff",
        "verify": "snapshots:verify",
        "dispose": "snapshots:dispose",
    },
    "Tools": {
        "ui": "tools:ui",
        "watch": "jobs:watch",
        "config": "tools:config",
        "doctor": "doctor:doctor",
        "gc": "tools:gc",
        "pack": "tools:pack",
    },
}
"""Every command in the order of the help, and the module of this package and its attribute."""

_COMPLETE = "_TURNBACK_COMPLETE"
"""Set by a shell that asks for completions, or for the script that makes it do so."""


class MainGroup(Group):
    """All commands; only the module of the one that is called is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for group in COMMANDS.values() for name in group]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for group in COMMANDS.values():
            if cmd_name in group:
                module, _, attribute = group[cmd_name].partition(":")
                command = getattr(import_module(f"turnback.cli.{module}"), attribute)
                assert isinstance(command, click.Command) and command.name == cmd_name
                return command
        return None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in COMMANDS.items():
            write_section(formatter, title, [self.summary(ctx, name) for name in names])
        own = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        write_options(formatter, ctx, "Options", [p for p in own if p not in SHARED_OPTIONS])
        write_options(formatter, ctx, SHARED_TITLE, SHARED_OPTIONS)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(f"{code.value:>3}", code.meaning) for code in ExitCode]
        write_section(formatter, "Exit codes", rows)


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"turnback {version('turnback')}")
        ctx.exit()


PROGRAM = MainGroup(
    "turnback",
    help="State, checkpoints and savepoints for PySpark streaming jobs.",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version and exit.",
        ),
        *SHARED_OPTIONS,
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    words = tuple(sys.argv[1:] if arguments is None else arguments)
    try:
        if _COMPLETE in os.environ:
            return shell_complete(PROGRAM, {}, "turnback", _COMPLETE, os.environ[_COMPLETE])
        with PROGRAM.make_context("turnback", [*words]) as context:
            result = PROGRAM.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain when it flushes again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 - nobody else could report it
        return _report(error, words)
    return ExitCode.OK if result is None else result


def _report(error: Exception, words: Sequence[str]) -> ExitCode:
    """Print why the command failed; its options are read from the text, which may be wrong."""
    # A script and its arguments may have options of the same name.
    words = [*takewhile(lambda word: not word.endswith(".py"), words)]
    out = Output(json="--json" in words, color="--no-color" not in words)
    debug = "--debug" in words
    if isinstance(error, AlreadyPrintedError):
        if str(error):
            out.message(str(error))
        return error.code
    kind = type(error).__name__
    code = exit_code(error)
    expected = True
    if isinstance(error, click.UsageError):
        path = "turnback" if error.ctx is None else error.ctx.command_path
        message = f"{error.format_message()}\nSee '{path} --help'."
        kind = "UsageError"
        code = ExitCode.USAGE
    elif isinstance(error, TurnbackError):
        message = str(error)
    else:
        message = f"{kind}: {error}"
        expected = False
    message = mask_text(message)
    if debug:
        traceback.print_exception(error)
    if out.json:
        out.document({"error": {"kind": kind, "message": message, "exit_code": int(code)}})
        return code
    first, *others = message.splitlines() or [""]
    out.message(f"error: {first}", "bold red")
    for line in others:
        out.message(line)
    if not expected and not debug:
        out.message("This error is unexpected. Run the command again with --debug for details.")
    return code


if __name__ == "__main__":
    sys.exit(main())
