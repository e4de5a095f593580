"""The program `turnback`: runs a command and turns what becomes of it into an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from typer.exceptions import Abort, TyperException

from turnback.cli.app import make_app
from turnback.cli.exit import DeclinedError, ExitCode, exit_code
from turnback.cli.output import Output
from turnback.core.errors import TurnbackError

COMPLETION = "_TURNBACK_COMPLETE"
"""Set by a shell that wants to know what may come next."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        completing = COMPLETION in os.environ
        app = make_app(() if completing else given)
        result = app(given, prog_name="turnback", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain when it flushes again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 - the last place where it can be told
        return _tell(error, given)
    return int(result or ExitCode.OK)


def _tell(error: Exception, given: Sequence[str]) -> ExitCode:
    """Print why the command ended; its options are read from the text, as it may not be parsed."""
    given = _ours(given)
    out = Output(json="--json" in given, color="--no-color" not in given)
    if isinstance(error, Abort):
        error = DeclinedError("not done, as nobody answered")
    if isinstance(error, TyperException) and not error.format_message():
        return ExitCode.USAGE  # the help was printed instead
    message, code, expected = _describe(error)
    if "--debug" in given:
        traceback.print_exception(error)
    if out.json:
        out.document({"error": _kind(error) | {"message": message, "exit_code": int(code)}})
        return code
    first, *hints = message.splitlines() or [""]
    out.say(f"error: {first}", "bold red")
    for hint in hints:
        out.say(hint)
    if not expected and "--debug" not in given:
        out.say("This is not an error Turnback expects. Run it again with --debug to see more.")
    return code


def _ours(given: Sequence[str]) -> Sequence[str]:
    """What is left without the arguments of a script, which may have options of the same name."""
    for at, word in enumerate(given):
        if word.endswith(".py"):
            return given[:at]
    return given


def _describe(error: Exception) -> tuple[str, ExitCode, bool]:
    """Message and exit code of an error, and whether users can do something about it."""
    if isinstance(error, TyperException):
        return _usage(error), ExitCode.USAGE, True
    if isinstance(error, TurnbackError):
        return str(error), exit_code(error), True
    return f"{type(error).__name__}: {error}", ExitCode.FAILED, False


def _usage(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    path = "turnback" if context is None else context.command_path
    return f"{error.format_message()}\nSee '{path} --help'."


def _kind(error: Exception) -> dict[str, Any]:
    return {"kind": "UsageError" if isinstance(error, TyperException) else type(error).__name__}


if __name__ == "__main__":
    sys.exit(main())
