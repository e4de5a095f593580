"""Every command and option as Markdown, for docs/cli.md: `python -m turnback.cli.reference`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from inspect import cleandoc

import click

from turnback.cli.command import SHARED_OPTIONS, SHARED_TITLE, Command
from turnback.cli.context import ExitCode
from turnback.cli.main import PROGRAM


def render() -> str:
    """Return the whole reference."""
    lines = [f"## {SHARED_TITLE}", "", *_options(SHARED_OPTIONS)]
    for name, command in all_commands():
        lines += _section(name, command)
    lines += ["## Exit codes", "", "| Code | |", "|---|---|"]
    lines += [f"| {code.value} | {code.meaning} |" for code in ExitCode]
    return "\n".join(lines)


def all_commands() -> Iterator[tuple[str, Command]]:
    """Return every command with the words that call it, in the order of the help."""
    context = click.Context(PROGRAM)
    for name in PROGRAM.list_commands(context):
        command = PROGRAM.get_command(context, name)
        subcommands = command.commands if isinstance(command, click.Group) else {}
        for words, each in [(name, command), *((f"{name} {n}", c) for n, c in subcommands.items())]:
            if isinstance(each, Command):
                yield words, each


def _section(name: str, command: Command) -> Iterator[str]:
    metavars = [str(argument.metavar) for argument in command.arguments]
    usage = " ".join(["turnback", name, "[OPTIONS]", *metavars])
    yield from (f"## {name}", "", f"`{usage}`", "", cleandoc(command.help or ""), "")
    yield from _table("Argument", [(f"`{a.metavar}`", a.description) for a in command.arguments])
    yield from _options(command.options)
    yield from ("```sh", *command.examples, "```", "")


def _options(options: Iterable[click.Option]) -> Iterator[str]:
    rows = []
    for option in options:
        names = ", ".join(f"`{name}`" for name in option.opts)
        rows.append((f"{names} `{option.metavar}`" if option.metavar else names, option.help or ""))
    yield from _table("Option", rows)


def _table(head: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield from (f"| {head} | |", "|---|---|")
        yield from (f"| {name} | {text} |" for name, text in rows)
        yield ""


if __name__ == "__main__":
    print(render())
