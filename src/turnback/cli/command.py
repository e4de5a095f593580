"""How a command is declared: a click command whose function takes a `Cli` first.

The options of every command may stand before the command or behind it, so each command has them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import click

from turnback.cli.context import Cli, ExitCode
from turnback.cli.output import Output

SHARED_TITLE = "Options of all commands"
SHARED_OPTIONS = (
    click.Option(
        ["--root"],
        metavar="DIR",
        help="Directory that holds all jobs. Default: state.checkpoints.dir, else TURNBACK_ROOT, "
        "else ~/.turnback/jobs.",
    ),
    click.Option(
        ["-D", "settings"],
        metavar="KEY=VALUE",
        multiple=True,
        help="Set a configuration key. Can be repeated.",
    ),
    click.Option(["--json"], is_flag=True, help="Print one JSON document and nothing else."),
    click.Option(["--no-color"], is_flag=True, help="Print without colours."),
    click.Option(["--debug"], is_flag=True, help="Print the stack trace of an error."),
)

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


class Argument(click.Argument):
    """An argument with a description, which click itself has since 8.5 only."""

    def __init__(self, *declaration: Any, description: str, **attributes: Any) -> None:
        super().__init__(*declaration, **attributes)
        self.description = description


class Command(click.Command):
    """A command, with command lines that work as examples.

    Its function takes a `Cli` before its own parameters and returns an exit code, or nothing if all
    went well. `options` are without those that every command has.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.arguments = [p for p in self.params if isinstance(p, Argument)]
        self.options = [p for p in self.params if isinstance(p, click.Option)]
        self.examples = tuple(examples)
        self._own_names = [str(p.name) for p in self.params]
        self.params += SHARED_OPTIONS

    def invoke(self, ctx: click.Context) -> ExitCode | None:
        assert self.callback is not None
        own = {name: ctx.params[name] for name in self._own_names}
        result: ExitCode | None = self.callback(make_cli(ctx), **own)
        return result

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_section(
            formatter, "Arguments", [(str(a.metavar), a.description) for a in self.arguments]
        )
        write_options(formatter, ctx, "Options", [*self.options, self.get_help_option(ctx)])
        write_options(formatter, ctx, SHARED_TITLE, SHARED_OPTIONS)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, each on a line however long it is."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


class Group(click.Group):
    """Commands of which one has to be named; a wrong name is answered with the nearest one."""

    command_class = Command

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **{"no_args_is_help": False} | attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            nearest = get_close_matches(name, self.list_commands(ctx), 1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of their declaration."""
        return list(self.commands)

    def summary(self, ctx: click.Context, name: str) -> tuple[str, str]:
        """Return the name of a command and the first sentence of its help."""
        command = self.get_command(ctx, name)
        assert command is not None
        return name.ljust(_NAME_WIDTH), command.get_short_help_str(limit=200)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [self.summary(ctx, name) for name in self.list_commands(ctx)]
        write_section(formatter, "Commands", rows)


_NAME_WIDTH = len("transactions")


def command(
    name: str, *examples: str, cls: type[Command] = Command, script: bool = False
) -> Callable[[Callable[..., ExitCode | None]], Command]:
    """Declare a command; the docstring of its function is its help.

    With `script`, everything behind the first argument belongs to a script.
    """
    settings = {"allow_interspersed_args": False} if script else {}
    return click.command(name, cls=cls, examples=examples, context_settings=settings)


def argument(
    name: str, metavar: str, *, help: str, complete: Completer | None = None
) -> Callable[[Any], Any]:
    """Declare an argument of a command.

    The help writes it as ``JOB``, ``[JOB]`` if it may be left out, ``[WORDS]...`` if there may be
    any number. `complete` gives the values that a shell offers.
    """
    several = metavar.endswith("...")
    return click.argument(
        name,
        cls=Argument,
        metavar=metavar,
        description=help,
        required=not metavar.startswith("["),
        nargs=-1 if several else 1,
        type=click.UNPROCESSED if several else str,
        shell_complete=complete,
    )


def flag(*names: str, help: str) -> Callable[[Any], Any]:
    """Declare an option without a value."""
    return click.option(*names, is_flag=True, help=help)


def number_option(
    *names: str, least: int, most: int | None = None, default: int | None = None, help: str
) -> Callable[[Any], Any]:
    """Declare an option whose value is a number from `least` to `most`."""
    allowed = f"of at least {least}" if most is None else f"from {least} to {most}"

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise click.BadParameter(f"{text!r} is not a whole number {allowed}.")
        return value

    return click.option(*names, metavar="N", type=number, default=default, help=help)


def write_section(
    formatter: click.HelpFormatter, title: str, rows: Sequence[tuple[str, str]]
) -> None:
    """Write names and what they mean below a title; nothing if there are none."""
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


def write_options(
    formatter: click.HelpFormatter,
    ctx: click.Context,
    title: str,
    options: Iterable[click.Option | None],
) -> None:
    """Write options below a title."""
    records = (option.get_help_record(ctx) for option in options if option is not None)
    write_section(formatter, title, [record for record in records if record is not None])


def make_cli(ctx: click.Context) -> Cli:
    """Return what the options of every command say, whether before the command or behind it.

    It works with a command line of which only the beginning has been typed, too.
    """
    given: list[dict[str, Any]] = []
    context: click.Context | None = ctx
    while context is not None:
        given.append(context.params)
        context = context.parent
    if any(params.get("no_color") for params in given):
        # rich reads this too, and so does every program that is started from here.
        os.environ["NO_COLOR"] = "1"
    # The innermost --root counts; settings are applied in the order in which they were written.
    roots = [params["root"] for params in given if params.get("root") is not None]
    return Cli(
        root=roots[0] if roots else None,
        settings=[pair for params in reversed(given) for pair in params.get("settings") or ()],
        output=Output(json=any(params.get("json") for params in given)),
        debug=any(params.get("debug") for params in given),
    )
