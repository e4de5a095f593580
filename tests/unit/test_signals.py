"""The tests themselves, started as CI runners and `nohup make test &` do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
CHILD = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
TEST_RUN = f"""
import subprocess, sys
sys.path.insert(0, {str(TESTS)!r})
import conftest
subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
"""


def test_ctrl_c_reaches_child_processes_also_if_it_is_ignored_outside() -> None:
    ignoring = 'trap "" INT; exec "$0" -c "$1"'
    done = subprocess.run(
        ["sh", "-c", ignoring, sys.executable, TEST_RUN],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False"]
