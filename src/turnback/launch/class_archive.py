"""Writes the archive of Spark's classes: `python -m turnback.launch.class_archive`.

A small job is run whose JVM writes all classes it has loaded to a file when it ends. Supervisors
start this in the background, with the lowest priority, when their job runs and there is no archive
yet; for images of containers it can be called while they are built.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from turnback.spark.class_archive import ClassArchive

_LEAST_MEMORY = 2 << 30
"""With less, writing an archive might cost a job its memory."""
_VARIABLES = "TURNBACK_"


def start_writing() -> subprocess.Popen[bytes] | None:
    """Begin to write the archive in a process of its own, unless there is nothing to do."""
    archive = ClassArchive.locate()
    if archive is None or not archive.is_wanted() or _memory_left() < _LEAST_MEMORY:
        return None
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "turnback.launch.class_archive", "--background"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def write(archive: ClassArchive) -> bool:
    """Write the archive, unless it is there or somebody else does; return whether it is."""
    # Imported here, as supervisors import this module.
    from turnback.launch.archived_job import run_job

    archive.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (archive.path.parent / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if archive.is_wanted():
            new = archive.path.with_suffix(".new")
            new.unlink(missing_ok=True)  # of one that was killed
            try:
                run_job(archive.write_to(new))
                archive.install(new)
            except Exception as error:  # noqa: BLE001 - whatever it is, jobs do without
                archive.give_up(f"{type(error).__name__}: {error}")
                new.unlink(missing_ok=True)
        return archive.is_there()


def _memory_left() -> int:
    """How many bytes processes can still use on this machine and in this container."""
    sizes = []
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            sizes.append(int(line.split()[1]) << 10)
    limit = _read("/sys/fs/cgroup/memory.max")
    used = _read("/sys/fs/cgroup/memory.current")
    if limit.strip().isdigit() and used.strip().isdigit():
        sizes.append(int(limit) - int(used))
    return min(sizes, default=0)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def main(*words: str) -> int:
    """Write the archive; with --background nobody waits for it."""
    for name in [name for name in os.environ if name.startswith(_VARIABLES)]:
        del os.environ[name]  # this is no driver, and has no configuration
    archive = ClassArchive.locate()
    if archive is None:
        print("class archives cannot be used here: see docs/operations.md")
        return 1
    if "--background" in words:
        os.nice(19)
    try:
        done = write(archive)
    except OSError as error:
        print(f"cannot write to {archive.path.parent}: {error}")
        return 1
    if done:
        print(archive.path)
    elif archive.failure.exists():
        print(archive.failure.read_text())
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
