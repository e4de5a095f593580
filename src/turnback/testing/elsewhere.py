"""Another process: shares nothing with this one, and is killed when it is done."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnback.spark.pickling import pickle_by_value

_PROGRAM = """
import os, pickle, signal, sys
call, answer = sys.argv[1:]
with open(call, "rb") as file:
    sys.path[:] = pickle.load(file)
    function, arguments = pickle.load(file)
try:
    result = (True, function(*arguments))
except BaseException as error:
    result = (False, f"{type(error).__name__}: {error}")
with open(answer, "wb") as file:
    file.write(pickle.dumps(result))
os.kill(os.getpid(), signal.SIGKILL)
"""
_TIMEOUT_S = 120


class ElsewhereError(Exception):
    """What was called in the other process has raised."""


def call_elsewhere(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new Python process, which is killed as soon as it has the result.

    Raises:
        ElsewhereError: The function raised, or the process died before it had a result.
    """
    with tempfile.TemporaryDirectory() as directory:
        call = Path(directory, "call")
        answer = Path(directory, "answer")
        call.write_bytes(pickle.dumps(sys.path) + pickle_by_value((function, arguments)))
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(call), str(answer)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode != -signal.SIGKILL or not answer.exists():
            raise ElsewhereError(f"the process ended by itself: {done.stderr.strip()[-2000:]}")
        succeeded, result = pickle.loads(answer.read_bytes())
    if not succeeded:
        raise ElsewhereError(result)
    return result
