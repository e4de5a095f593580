"""Asking before something cannot be undone."""

from __future__ import annotations

import sys
from typing import Annotated

from turnback.cli.context import Cli
from turnback.cli.exit import DeclinedError
from turnback.cli.text import printable
from turnback.cli.verb import flag

YesOption = Annotated[bool, flag("--yes", "-y", help="Do not ask.")]


def confirm(cli: Cli, question: str, yes: bool) -> None:
    """Ask a question that is answered with yes or no.

    Args:
        cli: What the command line says.
        question: The question, without a question mark's choices.
        yes: Whether it has been answered already.

    Raises:
        DeclinedError: The answer is no, or there is nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise DeclinedError(
            f"{question} Nobody can be asked, as this is not a terminal: give --yes to go on"
        )
    # Asked on stderr, so that stdout holds results only.
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        raise DeclinedError("not done, as you said no")
