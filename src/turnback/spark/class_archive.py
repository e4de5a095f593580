"""An archive of Spark's classes, parsed and verified, which takes seconds off the start of a JVM.

Loading classes is most of what a cold JVM does until the first epoch. Java can map them from a file
instead (class data sharing). `turnback.launch.class_archive` writes it into the user's cache
directory, once for each Java and Spark. Nothing depends on it: Java itself ignores an archive that
was written by another Java or for other jars, and `turnback.spark.session` does without one when
the JVM does not start with it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

JVM_OPTIONS = "spark.driver.defaultJavaOptions"
"""Where options for the JVM go: Spark puts them before those of spark.driver.extraJavaOptions."""
_QUIET = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
"""An archive that does not fit is no news to the user, and standard output is the program's."""
_VERSION = b"1"
"""To be changed when the archive should be written anew, because it is to hold other classes."""
_OF_USERS = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS")
_SHARING = ("-Xshare", "SharedArchive", "ArchiveClasses", JVM_OPTIONS)
_KEPT = 3


def java_program() -> str | None:
    """The `java` that Spark starts: that of JAVA_HOME, else the one on PATH, if any."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


@dataclass(frozen=True)
class ClassArchive:
    """The archive for this Java and this Spark, which may not have been written yet."""

    path: Path

    @classmethod
    def locate(cls) -> ClassArchive | None:
        """Find where it is, or would be; None where there can be none.

        That is without a home directory, with a configuration directory on the class path, which
        Java refuses to archive, and where the user has chosen another archive or none.
        """
        cache = _cache_directory()
        spark = spark_home()
        java = java_program()
        if cache is None or spark is None or java is None or ":" in str(cache):
            return None
        given = " ".join(os.environ.get(name, "") for name in _OF_USERS)
        if any(option in given for option in _SHARING) or _has_configuration(spark):
            return None
        try:
            name = _fingerprint(Path(java).resolve(), spark)
        except OSError:  # one of them is gone; whoever needs it says so
            return None
        return cls(cache / "classes" / f"{name}.jsa")

    @property
    def failure(self) -> Path:
        """Holds why it could not be written, or not be used, so that nobody tries again."""
        return self.path.with_suffix(".failed")

    def is_there(self) -> bool:
        """Whether it can be used; others must not have written it, as it is code."""
        try:
            info = self.path.stat()
        except OSError:
            return False
        return info.st_uid in (0, os.getuid()) and not info.st_mode & 0o022

    def is_wanted(self) -> bool:
        """Whether it is worth a try to write it."""
        return not self.path.exists() and not self.failure.exists()

    def use(self) -> dict[str, str]:
        """Settings of Spark with which the driver's JVM uses it."""
        with suppress(OSError):  # those that were used last are kept
            os.utime(self.path)
        return {JVM_OPTIONS: f'"-XX:SharedArchiveFile={self.path}" {_QUIET}'}

    def write_to(self, path: Path) -> dict[str, str]:
        """Settings with which the JVM writes all classes it has loaded to a file when it ends."""
        return {JVM_OPTIONS: f'"-XX:ArchiveClassesAtExit={path}" {_QUIET}'}

    def give_up(self, why: str) -> None:
        """Remove it, and note why there is none."""
        with suppress(OSError):  # a directory that is read-only
            self.failure.write_text(why)
            self.path.unlink(missing_ok=True)

    def install(self, new: Path) -> None:
        """Put a file that is complete in its place, and drop those that were not used for long."""
        with new.open("rb") as file:
            os.fsync(file.fileno())
        new.chmod(0o444)
        new.rename(self.path)
        archives = self.path.parent.glob("*.jsa")
        for old in sorted(archives, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            old.unlink(missing_ok=True)


def _cache_directory() -> Path | None:
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "turnback"
    try:
        return Path.home() / ".cache" / "turnback"
    except RuntimeError:
        return None


def spark_home() -> Path | None:
    """Spark's directory, without importing it."""
    given = os.environ.get("SPARK_HOME")
    if given:
        return Path(given)
    spec = importlib.util.find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _has_configuration(spark: Path) -> bool:
    if os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR"):
        return True
    directory = Path(os.environ.get("SPARK_CONF_DIR") or spark / "conf")
    return directory.is_dir() and any(directory.iterdir())


def _fingerprint(java: Path, spark: Path) -> str:
    """Which Java and which jars these are; Java refuses archives of jars that have changed."""
    parts = [_VERSION, platform.machine().encode(), bytes(java), bytes(spark)]
    release = java.parents[1] / "release"
    files = [release if release.is_file() else java, *sorted((spark / "jars").iterdir())]
    for path in files:
        info = path.stat()
        parts.append(f"{path.name} {info.st_size} {info.st_mtime_ns}".encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
