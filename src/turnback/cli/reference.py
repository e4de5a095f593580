"""Every command and option as Markdown, for the docs: `python -m turnback.cli.reference`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command

from turnback.cli.app import VERBS, find_verb, make_app
from turnback.cli.exit import ExitCode
from turnback.cli.verb import SHARED_PANEL, Verb


def render() -> str:
    """The whole reference."""
    group = get_command(make_app())
    assert isinstance(group, TyperGroup)
    lines = ["## Options of every command", "", *_options(_shared(group)), ""]
    for verb in _verbs():
        lines += [*_section(verb, _find(group, verb.name)), ""]
    return "\n".join([*lines, *_exit_codes()])


def _verbs() -> Iterator[Verb]:
    """All commands; those that follow another one have both names."""
    for name in VERBS:
        found = find_verb(name)
        if isinstance(found, Verb):
            yield found
        else:
            for verb in found.verbs:
                yield Verb(f"{name} {verb.name}", verb.function, verb.panel, verb.examples)


def _find(group: Any, name: str) -> Any:
    for word in name.split():
        group = group.commands[word]
    return group


def _shared(command: Any) -> list[Any]:
    return [p for p in command.params if getattr(p, "rich_help_panel", None) == SHARED_PANEL]


def _section(verb: Verb, command: Any) -> Iterator[str]:
    shared = _shared(command)
    own = [p for p in command.params if p not in shared]
    arguments = [p for p in own if isinstance(p, TyperArgument)]
    usage = " ".join(["turnback", verb.name, "[OPTIONS]", *(_argument(a) for a in arguments)])
    yield from (f"## {verb.name}", "", f"`{usage}`", "")
    yield from (command.help.replace(r"\[", "["), "")
    rows = [(f"`{_argument(a)}`", a.help or "") for a in arguments]
    yield from _table("Argument", rows)
    yield from _options([p for p in own if isinstance(p, TyperOption)])
    yield from ("```sh", *verb.examples, "```")


def _argument(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return f"[{name}]..." if argument.nargs == -1 else name


def _options(options: list[Any]) -> Iterator[str]:
    rows = []
    for option in options:
        names = ", ".join(f"`{name}`" for name in option.opts)
        value = f" `{option.metavar}`" if option.metavar else ""
        rows.append((names + value, option.help or ""))
    yield from _table("Option", rows)


def _table(head: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield from (f"| {head} | |", "|---|---|")
        yield from (f"| {name} | {text} |" for name, text in rows)
        yield ""


def _exit_codes() -> Iterator[str]:
    yield from ("## Exit codes", "", "| Code | |", "|---|---|")
    yield from (f"| {code.value} | {code.meaning} |" for code in ExitCode)


if __name__ == "__main__":
    print(render())
