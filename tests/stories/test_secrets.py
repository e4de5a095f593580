"""Passwords of a job: on no command line, in no file others can read, and never shown."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from place import Place

pytestmark = pytest.mark.no_jvm

ACCOUNT = "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net"
SECRETS = ("account-s3cret", "argument-s3cret")


def test_secrets_are_neither_shown_nor_stored_nor_on_command_lines(place: Place) -> None:
    place.feed()
    place.run("-D", f"{ACCOUNT}=account-s3cret", script=("--db-password", "argument-s3cret"))
    place.await_complete()
    launch = place.launch()
    for process in (launch.driver(), launch.supervisor()):
        assert process is not None
        line = Path(f"/proc/{process.pid}/cmdline").read_text()
        assert "turnback.launch" in line
        assert not [secret for secret in SECRETS if secret in line]
    place.ask("savepoint", "counts")
    shown = [
        place.turnback(*words, *form)
        for words in (("status", "counts"), ("savepoints", "counts"), ("logs", "counts"))
        for form in ((), ("--json",))
        if words[0] != "logs" or not form
    ]
    shown += [place.turnback("savepoints", "counts", "--restore")]
    assert "postgres://me:****@db/shop" in "".join(shown)
    assert "--db-password '****'" in "".join(shown)
    place.ask("stop", "counts", "--yes")
    text = "\n".join(shown)
    assert not [secret for secret in SECRETS if secret in text]
    files = [path for root in (place.jobs, place.savepoints) for path in root.rglob("*")]
    assert len(files) > 20
    for path in files:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
        data = b"" if path.is_dir() else path.read_bytes()
        assert not [secret for secret in SECRETS if secret.encode() in data], path
    assert stat.S_IMODE(launch.path.stat().st_mode) == 0o700  # what it was started with is there
    assert "argument-s3cret" not in launch.log.read_text()
    output = place.out / "users"
    assert all(path.stat().st_mode & 0o044 for path in output.glob("*.json"))  # for whom it may be
