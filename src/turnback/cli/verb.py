"""How a command is declared: a function of `Cli` and its own options, with the shared ones added.

Shared options may stand before or behind the command, so each command declares them as well.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from turnback.cli.context import Cli
from turnback.cli.exit import ExitCode
from turnback.cli.output import Output
from turnback.cli.quick import QuickCommand, QuickGroup

SHARED_PANEL = "Options of every command"


def flag(*names: str, help: str, panel: str | None = None, **more: Any) -> Any:
    """An option without a value."""
    return typer.Option(*names, metavar="", help=help, rich_help_panel=panel, **more)


RootOption = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="DIR",
        help="Where jobs are; by default what state.checkpoints.dir says, else "
        "TURNBACK_ROOT, else ~/.turnback/jobs.",
        rich_help_panel=SHARED_PANEL,
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "-D",
        metavar="KEY=VALUE",
        help="Set a configuration key; may be repeated.",
        rich_help_panel=SHARED_PANEL,
    ),
]
JsonOption = Annotated[
    bool,
    flag("--json", help="Print one JSON document and nothing else.", panel=SHARED_PANEL),
]
NoColorOption = Annotated[
    bool,
    flag("--no-color", help="Print without colours.", panel=SHARED_PANEL),
]
DebugOption = Annotated[
    bool,
    flag("--debug", help="Show where in the code an error comes from.", panel=SHARED_PANEL),
]
_SHARED: dict[str, tuple[Any, Any]] = {
    "root": (RootOption, None),
    "settings": (SettingsOption, None),
    "json": (JsonOption, False),
    "no_color": (NoColorOption, False),
    "debug": (DebugOption, False),
}

Function = Callable[..., ExitCode | None]


class Panel(StrEnum):
    """Groups of commands, in the help."""

    RUN = "Run"
    LOOK = "Look"
    ACT = "Act"
    SNAPSHOTS = "Snapshots"
    TOOLS = "Tools"


@dataclass(frozen=True)
class Shared:
    """What was said before the command."""

    root: str | None = None
    settings: tuple[str, ...] = ()
    json: bool = False
    no_color: bool = False
    debug: bool = False

    def make(
        self,
        root: str | None,
        settings: Sequence[str] | None,
        json: bool,
        no_color: bool,
        debug: bool,
    ) -> Cli:
        """Join with what was said behind the command, which counts more."""
        if no_color or self.no_color:
            # rich looks at this too, and so does every program that is started from here.
            os.environ["NO_COLOR"] = "1"
        return Cli(
            root=root if root is not None else self.root,
            settings=(*self.settings, *(settings or ())),
            output=Output(json=json or self.json),
            debug=debug or self.debug,
        )


@dataclass(frozen=True)
class Verb:
    """A command.

    Attributes:
        name: What users type.
        function: What it does; its docstring is the help. The first parameter is a `Cli`.
        panel: The group it is in, in the help.
        examples: Command lines that work.
        cls: How its arguments are parsed, if not as usual.
        script: Whether everything behind the first argument belongs to a script.
    """

    name: str
    function: Function
    panel: Panel
    examples: tuple[str, ...] = ()
    cls: type[QuickCommand] = QuickCommand
    script: bool = False

    def register(self, app: typer.Typer) -> None:
        """Add it to a program."""
        settings = {"allow_interspersed_args": False} if self.script else {}
        app.command(
            self.name,
            cls=self.cls,
            help=help_of(self.function),
            epilog=examples_text(self.examples),
            rich_help_panel=self.panel,
            context_settings=settings,
        )(with_shared(self.function))


@dataclass(frozen=True)
class VerbGroup:
    """A command that is followed by another one.

    Attributes:
        name: What users type.
        help: What its commands are about.
        panel: The group it is in, in the help.
        verbs: Its commands.
    """

    name: str
    help: str
    panel: Panel
    verbs: tuple[Verb, ...]

    def register(self, app: typer.Typer) -> None:
        """Add it to a program."""
        group = typer.Typer(cls=QuickGroup, help=self.help, no_args_is_help=True)
        for verb in self.verbs:
            verb.register(group)
        app.add_typer(group, name=self.name, rich_help_panel=self.panel)


def help_of(function: Callable[..., Any]) -> str:
    """The docstring of a command, with brackets that rich does not take for styles."""
    return inspect.cleandoc(function.__doc__ or "").replace("[", r"\[")


def examples_text(examples: Sequence[str]) -> str | None:
    """The examples of a command, for the end of its help."""
    if not examples:
        return None
    lines = ["[bold]Examples[/bold]", *("  " + e.replace("[", r"\[") for e in examples)]
    return "\n".join(lines)


def with_shared(function: Function) -> Callable[..., ExitCode | None]:
    """A function that takes the shared options in place of the `Cli`."""
    own = inspect.signature(function, eval_str=True)
    first, *rest = own.parameters.values()
    if first.name != "cli":
        raise TypeError(f"{function.__name__} must take cli first, not {first.name}")

    @functools.wraps(function)
    def command(ctx: typer.Context, **given: Any) -> ExitCode | None:
        before = ctx.obj if isinstance(ctx.obj, Shared) else Shared()
        cli = before.make(**{name: given.pop(name) for name in _SHARED})
        return function(cli, **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    params = [
        inspect.Parameter("ctx", keyword, annotation=typer.Context),
        *(p.replace(kind=keyword) for p in rest),
        *(
            inspect.Parameter(name, keyword, annotation=hint, default=default)
            for name, (hint, default) in _SHARED.items()
        ),
    ]
    command.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
    # functools.wraps copied the hints of the function, which name the Cli.
    command.__annotations__ = {p.name: p.annotation for p in params}
    del command.__wrapped__
    return command
