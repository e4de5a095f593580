"""docs/cli.md and the help say what the program can do, no more and no less."""

import re
import shlex
from pathlib import Path
from unittest.mock import patch

import click
import pytest

from turnback.cli.command import Command
from turnback.cli.context import ExitCode
from turnback.cli.main import PROGRAM
from turnback.cli.reference import all_commands, render

pytestmark = pytest.mark.slow

DOCS = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
COMMANDS = dict(all_commands())


def section(name):
    return re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", DOCS, re.DOTALL | re.MULTILINE)[1]


def options_of(command):
    return {name for param in command.params for name in param.opts if name.startswith("-")}


SHARED = {"--root", "-D", "--json", "--no-color", "--debug"}


def test_the_reference_is_what_the_program_prints():
    reference = DOCS.partition("<!-- reference -->\n\n")[2]
    assert reference.strip() == render().strip(), "run python -m turnback.cli.reference"


def test_every_command_is_documented_and_every_documented_one_exists():
    documented = set(re.findall(r"^`turnback ([a-z ]+?) \[OPTIONS\]", DOCS, re.MULTILINE))
    assert documented == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented_and_every_documented_one_exists(name):
    rows = [row for row in section(name).splitlines() if row.startswith("| `-")]
    documented = {word for row in rows for word in re.findall(r"`(-[^`]*)`", row.split(" | ")[0])}
    assert documented == options_of(COMMANDS[name]) - SHARED


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_the_shared_options(name):
    assert options_of(COMMANDS[name]) >= SHARED


def test_commands_in_the_text_exist():
    text = DOCS.partition("<!-- reference -->")[0]
    for line in re.findall(r"^turnback (.*)$", text, re.MULTILINE):
        parse(shlex.split(line, comments=True))


ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_in_other_pages_exist(page):
    for block in re.findall(r"^```\w*\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        lines = block.replace("\\\n", " ")  # a command may go on in the next line
        for line in re.findall(r"^(?:\$ )?turnback (.*)$", lines, re.MULTILINE):
            parse(shlex.split(line, comments=True))


def test_the_exit_codes_are_documented():
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", section("Exit codes"), re.MULTILINE))
    assert rows == {str(code.value): code.meaning for code in ExitCode}


def parse(words):
    """Parse a command line without running it."""
    with (
        patch.object(Command, "invoke", lambda command, context: None),
        PROGRAM.make_context("turnback", list(words)) as context,
    ):
        PROGRAM.invoke(context)


EXAMPLES = [example for command in COMMANDS.values() for example in command.examples]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_can_be_parsed(example):
    program, *words = shlex.split(example)
    assert program == "turnback"
    parse(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_a_summary_and_examples(shell, name):
    done = shell(*name.split(), "--help")
    assert done.code == 0
    assert "Examples" in done.out
    first = COMMANDS[name].help.split("\n\n")[0]
    assert first.endswith(".") and len(first) < 100


def test_the_help_groups_commands_and_tells_the_exit_codes(shell):
    done = shell("--help")
    for panel in ("Run", "Look", "Act", "Snapshots", "Tools"):
        assert f"\n{panel}:\n" in done.out
    assert "130  interrupted with Ctrl-C" in done.out


def test_the_help_lists_commands_in_the_order_of_the_table(shell):
    listed = re.findall(r"^  ([a-z]+) {2,}[A-Z]", shell("--help").out, re.MULTILINE)
    assert listed == PROGRAM.list_commands(click.Context(PROGRAM))
