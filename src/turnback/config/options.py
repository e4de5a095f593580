"""Keys that are Spark's own."""

from __future__ import annotations

import re
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from turnback.config.checkpointing import CHECKPOINT_OPTIONS, CheckpointStorage
from turnback.config.object_store import S3_OPTIONS
from turnback.config.option import Option, choice, count, flag, size, spellings, text
from turnback.config.restart_options import RESTART_OPTIONS
from turnback.config.savepoints import SAVEPOINT_OPTIONS
from turnback.core.errors import ConfigurationError
from turnback.core.units import size_setting

SPARK_PREFIX = "spark."
SPARK_DOC = (
    "Any setting of Spark, for the session Turnback makes; a running session is used as it is."
)

# Spark's own `spark.redaction.regex`, and what people call such things.
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


def spark_option(key: str) -> Option:
    """The option for a key of Spark."""
    return Option(key, text, SPARK_DOC, secret=_SECRET.search(key) is not None)


BACKENDS: dict[str, tuple[str, CheckpointStorage | None]] = {
    "hashmap": ("hashmap", None),
    "rocksdb": ("rocksdb", None),
    "memory": ("hashmap", CheckpointStorage.JOBMANAGER),
    "jobmanager": ("hashmap", CheckpointStorage.JOBMANAGER),
    "filesystem": ("hashmap", CheckpointStorage.FILESYSTEM),
}
"""The local store of each name; and the storage of checkpoints, for Flink's classic pairs."""


def backend_name(key: str, value: Any) -> str:
    """Read the name of a backend."""
    if not isinstance(value, str) or value not in BACKENDS:
        raise ConfigurationError(
            f"{key}: unknown state backend {value!r}; there are {', '.join(BACKENDS)}"
        )
    return value


MAX_PARALLELISM = 32_768


class LogLevel(StrEnum):
    """What is worth a line in the log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """What a line of the log looks like."""

    TEXT = "text"
    JSON = "json"


_JOB_OPTIONS = (
    Option(
        "parallelism.default",
        count(1),
        "Number of instances of every operator that has none of its own; when it is not set, "
        "Spark's default parallelism.",
    ),
    Option(
        "pipeline.max-parallelism",
        count(1, MAX_PARALLELISM),
        "Number of key groups, for the whole life of the job's state.",
        default="128",
    ),
    Option(
        "state.backend.type",
        backend_name,
        "Where state is kept while the job runs: `rocksdb` (local disk) or `hashmap` (memory); "
        "or a classic pair: `memory`, `jobmanager` (hashmap, checkpoints in the driver's memory) "
        "or `filesystem` (hashmap, checkpoints in files).",
        default="rocksdb",
        aliases=("state.backend",),
    ),
    Option(
        "state.backend.local-dir",
        text,
        "Where state is kept on each machine; when it is not set, shared memory for `hashmap` "
        "and the directory of temporary files for `rocksdb`.",
        aliases=("state.backend.rocksdb.localdir",),
    ),
)
_SERVICE_OPTIONS = (
    Option(
        "web.address",
        text,
        "Address the dashboard listens on.",
        default="127.0.0.1",
        aliases=("rest.address",),
    ),
    Option(
        "web.port",
        count(0, 65_535),
        "Port the dashboard listens on; 0 for any that is free.",
        default="8081",
        aliases=("rest.port",),
    ),
    Option(
        "web.root-path",
        text,
        "Path below which a reverse proxy shows the dashboard, such as `/turnback`.",
    ),
    Option(
        "web.read-only",
        flag,
        "Whether the dashboard only shows, and changes nothing.",
        default="false",
    ),
    Option(
        "run.dir",
        text,
        "Where what `turnback run` starts keeps its log, on the machine of the driver.",
        default="~/.turnback/runs",
    ),
    Option(
        "run.log.max-size",
        size(1 << 10),
        "When a driver's log is larger, it is begun anew and the part before it is kept beside it.",
        default="64 mb",
        write=size_setting,
    ),
    Option(
        "log.level",
        choice(LogLevel),
        "What is worth a line in the log: `debug`, `info`, `warning` or `error`.",
        default="info",
    ),
    Option(
        "log.format",
        choice(LogFormat),
        "What a line of the log looks like: `text`, or `json` for machines.",
        default="text",
    ),
)

OPTIONS: tuple[Option, ...] = tuple(
    sorted(
        (
            *CHECKPOINT_OPTIONS,
            *RESTART_OPTIONS,
            *SAVEPOINT_OPTIONS,
            *S3_OPTIONS,
            *_JOB_OPTIONS,
            *_SERVICE_OPTIONS,
        ),
        key=lambda option: option.key,
    )
)
"""Every option, by key."""

SPELLINGS = spellings(OPTIONS)
"""Every key that is understood, besides those that begin with ``spark.``"""

_BY_SPELLING = {name: option for option in OPTIONS for name in option.spellings}


def option_of(key: str) -> Option:
    """The option that has this name.

    Raises:
        ConfigurationError: There is none; the nearest is suggested.
    """
    if isinstance(key, str):
        if key.startswith(SPARK_PREFIX) and key != SPARK_PREFIX:
            return spark_option(key)
        if key in _BY_SPELLING:
            return _BY_SPELLING[key]
    raise ConfigurationError(f"unknown key {key!r}{suggestion(str(key), SPELLINGS)}")


def suggestion(name: str, known: tuple[str, ...]) -> str:
    """What was probably meant, as the end of an error message."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


_HEAD = ("Key", "Default", "What it does", "Other names")


def table() -> str:
    """Every key as a table in Markdown, for the documentation."""
    rows = [
        (
            f"`{option.key}`",
            "" if option.default is None else f"`{option.default}`",
            option.doc,
            ", ".join(f"`{alias}`" for alias in option.aliases),
        )
        for option in OPTIONS
    ]
    rows.append((f"`{SPARK_PREFIX}*`", "", SPARK_DOC, ""))
    rule = tuple("---" for _ in _HEAD)
    return "".join(f"| {' | '.join(row)} |\n" for row in (_HEAD, rule, *sorted(rows)))


if __name__ == "__main__":
    print(table(), end="")
