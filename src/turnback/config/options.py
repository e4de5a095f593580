"""Every configuration key there is."""

from __future__ import annotations

from difflib import get_close_matches
from enum import StrEnum

from turnback.config.backend import backend_name
from turnback.config.object_store import S3_OPTIONS
from turnback.config.spark import SPARK_PREFIX, spark_option
from turnback.coordinator.config import CHECKPOINT_OPTIONS
from turnback.coordinator.option import (
    Option,
    choice,
    count,
    flag,
    size,
    size_text,
    spellings,
    text,
)
from turnback.coordinator.restart_options import RESTART_OPTIONS
from turnback.coordinator.savepoint_settings import SAVEPOINT_OPTIONS
from turnback.core.errors import ConfigurationError

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
        write=size_text,
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
