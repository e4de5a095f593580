"""Named points at which a crash test lets the process die.

Nothing happens at them unless the environment asks for it:

- ``TURNBACK_KILL_AT=name`` or ``name:k`` kills the process with SIGKILL when it reaches the point
  (for the k-th time).
- ``TURNBACK_STOP_AT`` does the same with SIGSTOP, which turns the process into a paused zombie.
- ``TURNBACK_KILL_PID`` names the process to signal instead, so that a point in a task can end the
  driver.
- ``TURNBACK_FAULT_COMMIT_FIRST=1`` commits sinks before the manifest is written. It is wrong on
  purpose: it proves that the tests notice.
"""

import os
import signal
import threading

_SIGNALS = (("TURNBACK_KILL_AT", signal.SIGKILL), ("TURNBACK_STOP_AT", signal.SIGSTOP))
_LOCK = threading.Lock()
_REACHED: dict[str, int] = {}


def reach(name: str) -> None:
    """Pass a named point; die or stop there if the environment says so."""
    for variable, number in _SIGNALS:
        wanted = os.environ.get(variable)
        if wanted is not None and _is_due(variable, wanted, name):
            os.kill(int(os.environ.get("TURNBACK_KILL_PID", os.getpid())), number)


def commit_first() -> bool:
    """Return whether the deliberately broken order of commits is switched on."""
    return os.environ.get("TURNBACK_FAULT_COMMIT_FIRST") == "1"


def _is_due(variable: str, wanted: str, name: str) -> bool:
    point, _, count = wanted.partition(":")
    if point != name:
        return False
    with _LOCK:
        key = f"{variable} {name}"
        _REACHED[key] = _REACHED.get(key, 0) + 1
        return _REACHED[key] == (int(count) if count else 1)
