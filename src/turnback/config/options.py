"""Every configuration key: those of object stores, jobs and services are declared here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from turnback.config.checkpointing import CheckpointSettings, CheckpointStorage, SavepointSettings
from turnback.config.option import (
    Option,
    Parser,
    choice,
    count,
    duration,
    flag,
    size,
    spellings,
    text,
    written,
)
from turnback.config.restart import RESTART_OPTIONS, limit, written_limit
from turnback.config.watchdog import AlertSettings, WatchdogSettings
from turnback.core.masking import is_secret_name
from turnback.core.units import duration_setting, size_setting
from turnback.errors import ConfigurationError

_VIRTUAL_HOSTED = "virtual_hosted_style_request"


def _s3(
    key: str,
    doc: str,
    default: str | None = None,
    parse: Parser = text,
    field: str | None = None,
    **more: Any,
) -> Option:
    """The key of an option of `S3Storage`: `field`, by default that of the same name."""
    name = field or key.removeprefix("s3.").replace("-", "_")
    return Option(key, parse, doc, default, name, **more)


_TIME: dict[str, Any] = {"parse": duration(1), "write": duration_setting}

S3_OPTIONS = (
    _s3("s3.endpoint", "Endpoint of the object store. Not needed for Amazon S3."),
    _s3("s3.access-key", "ID of the access key.", field="access_key_id"),
    _s3("s3.secret-key", "Secret access key.", field="secret_access_key", secret=True),
    _s3("s3.session-token", "Session token of a temporary access key.", secret=True),
    _s3("s3.region", "Region of the bucket.", aliases=("s3.endpoint.region",)),
    _s3(
        "s3.path.style.access",
        "Whether the bucket is part of the path instead of the host name, as most stores other "
        "than Amazon S3 require.",
        "true",
        flag,
        _VIRTUAL_HOSTED,  # the opposite
        aliases=("s3.path-style-access",),
    ),
    _s3("s3.allow-http", "Whether an endpoint without TLS is allowed.", "false", flag),
    _s3(
        "s3.allow-invalid-certificates",
        "Whether invalid TLS certificates are accepted. For tests only.",
        "false",
        flag,
    ),
    _s3(
        "s3.skip-signature", "Whether to send unsigned requests, for public buckets.", "false", flag
    ),
    _s3(
        "s3.server-side-encryption",
        "Server-side encryption of objects, such as `AES256` or `aws:kms`.",
    ),
    _s3("s3.sse-kms-key-id", "ID of the KMS key that encrypts objects."),
    # Proxies often have a password in their address.
    _s3("s3.proxy-url", "Proxy for requests to the store.", secret=True),
    _s3("s3.timeout", "Timeout of one request.", "2 min", **_TIME),
    _s3("s3.connect-timeout", "Timeout of a connection attempt.", "5 s", **_TIME),
    _s3("s3.retry-timeout", "Maximum time to retry a failed request.", "3 min", **_TIME),
    _s3("s3.max-retries", "Maximum number of retries of a failed request.", "10", count(0, 1_000)),
)
HDFS_OPTIONS = (
    Option(
        "hdfs.config-dir",
        text,
        "Directory with `core-site.xml` and `hdfs-site.xml` on every machine; when it is not set, "
        "the variable `HADOOP_CONF_DIR` names it.",
        field="hdfs_config_dir",
    ),
    Option(
        "hdfs.timeout",
        doc="Timeout of one call of HDFS, besides a second for every MiB that it moves.",
        default="2 min",
        field="hdfs_timeout",
        **_TIME,
    ),
    Option(
        "hdfs.retry-timeout",
        doc="How long a call is repeated while the NameNode is away, in safe mode or failing over.",
        default="3 min",
        field="hdfs_retry_timeout",
        **_TIME,
    ),
)


def _store(key: str, doc: str, default: str | None = None, **more: Any) -> Option:
    """The key of an option of `GcsStorage` or `AzureStorage`, which has the same name."""
    return Option(key, doc=doc, default=default, field=re.sub("[.-]", "_", key), **more)


def _client(store: str) -> tuple[Option, ...]:
    """The keys of how requests are sent to a store."""
    return (
        _store(
            f"{store}.allow-http",
            "Whether an endpoint without TLS is allowed.",
            "false",
            parse=flag,
        ),
        _store(
            f"{store}.allow-invalid-certificates",
            "Whether invalid TLS certificates are accepted. For tests only.",
            "false",
            parse=flag,
        ),
        _store(f"{store}.proxy-url", "Proxy for requests to the store.", parse=text, secret=True),
        _store(f"{store}.timeout", "Timeout of one request.", "2 min", **_TIME),
        _store(f"{store}.connect-timeout", "Timeout of a connection attempt.", "5 s", **_TIME),
        _store(
            f"{store}.retry-timeout", "Maximum time to retry a failed request.", "3 min", **_TIME
        ),
        _store(
            f"{store}.max-retries",
            "Maximum number of retries of a failed request.",
            "10",
            parse=count(0, 1_000),
        ),
    )


GCS_OPTIONS = (
    _store("gcs.endpoint", "Endpoint of the object store. Not needed for Google's.", parse=text),
    _store(
        "gcs.service-account",
        "File with the key of a service account, on every machine. When nothing is set, the "
        "variable `GOOGLE_APPLICATION_CREDENTIALS` or the machine's account counts.",
        parse=text,
    ),
    _store(
        "gcs.service-account-key",
        "The key of a service account itself, as JSON.",
        parse=text,
        secret=True,
    ),
    *_client("gcs"),
)
AZURE_OPTIONS = (
    _store(
        "azure.endpoint",
        "Endpoint of the Blob service. Not needed for Azure: the URL names the account.",
        parse=text,
    ),
    _store("azure.account-key", "Access key of the storage account.", parse=text, secret=True),
    _store("azure.sas-token", "Shared access signature.", parse=text, secret=True),
    _store("azure.tenant-id", "Tenant (directory) of a service principal.", parse=text),
    _store(
        "azure.client-id",
        "Application of a service principal, or of a managed identity that a user assigned.",
        parse=text,
    ),
    _store("azure.client-secret", "Secret of a service principal.", parse=text, secret=True),
    *_client("azure"),
)
STORAGE_PREFIXES = ("s3.", "hdfs.", "gcs.", "azure.")
"""What the keys of storages begin with."""

_STORAGE_OPTIONS = (*S3_OPTIONS, *HDFS_OPTIONS, *GCS_OPTIONS, *AZURE_OPTIONS)
_BY_FIELD = {option.field: option for option in _STORAGE_OPTIONS}


def as_storage_options(settings: Mapping[str, str]) -> dict[str, str]:
    """Options of storages for configuration keys; other keys are ignored."""
    given = {o.field: settings[o.key] for o in _STORAGE_OPTIONS if o.key in settings}
    return {name: _negated(name, value) for name, value in given.items()}


def from_storage_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration keys for options of storages."""
    settings = {}
    for name, value in options.items():
        option = _BY_FIELD.get(name)
        if option is None:
            hint = suggestion(name, tuple(_BY_FIELD))
            raise ConfigurationError(f"unknown storage option {name!r}{hint}")
        settings[option.key] = _negated(name, value)
    return settings


def _negated(name: str, value: Any) -> Any:
    """Path style and virtual hosts are opposites; any other value stays as it is."""
    return written(not flag(name, value)) if name == _VIRTUAL_HOSTED else value


SPARK_PREFIX = "spark."
SPARK_DOC = (
    "Any Spark setting, for the session that Turnback creates. An existing session is used "
    "as it is."
)


def spark_option(key: str) -> Option:
    """The option for a key of Spark."""
    return Option(key, text, SPARK_DOC, secret=is_secret_name(key))


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
            f"{key}: unknown state backend {value!r}; available: {', '.join(BACKENDS)}"
        )
    return value


MAX_PARALLELISM = 32_768


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


_JOB_OPTIONS = (
    Option(
        "execution.same-error-limit",
        limit(1),
        "How many times in a row a function may fail with the same error on the same element, "
        "without a completed epoch in between, before the job fails regardless of the restart "
        "strategy; or `unlimited`.",
        default="100",
        write=written_limit,
    ),
    Option(
        "parallelism.default",
        count(1),
        "Parallelism of operators that do not set their own. If not set, Spark's default "
        "parallelism.",
    ),
    Option(
        "pipeline.max-parallelism",
        count(1, MAX_PARALLELISM),
        "Number of key groups. Fixed for the lifetime of the job's state.",
        default="128",
    ),
    Option(
        "state.backend.type",
        backend_name,
        "Local state store: `rocksdb` (local disk) or `hashmap` (memory). Or one of Flink's "
        "older combinations: `memory`, `jobmanager` (hashmap, checkpoints in the driver's "
        "memory) or `filesystem` (hashmap, checkpoints in files).",
        default="rocksdb",
        aliases=("state.backend",),
    ),
    Option(
        "state.backend.local-dir",
        text,
        "Directory of local state on each machine. If not set, shared memory for `hashmap` and "
        "the temporary directory for `rocksdb`.",
        aliases=("state.backend.rocksdb.localdir",),
    ),
)
_SERVICE_OPTIONS = (
    Option(
        "web.address",
        text,
        "Address that the dashboard listens on.",
        default="127.0.0.1",
        aliases=("rest.address",),
    ),
    Option(
        "web.port",
        count(0, 65_535),
        "Port that the dashboard listens on; 0 for any free port.",
        default="8081",
        aliases=("rest.port",),
    ),
    Option(
        "web.root-path",
        text,
        "Path under which a reverse proxy serves the dashboard, such as `/turnback`.",
    ),
    Option(
        "web.read-only",
        flag,
        "Whether the dashboard is read-only.",
        default="false",
    ),
    Option(
        "run.class-archive",
        flag,
        "Whether drivers load Spark's classes from an archive in the cache directory, which "
        "makes starts seconds faster. If there is none, `turnback run` writes it in the "
        "background.",
        default="true",
    ),
    Option(
        "run.dir",
        text,
        "Directory for the launches of `turnback run` and their logs, on the driver's machine.",
        default="~/.turnback/runs",
    ),
    Option(
        "run.log.max-size",
        size(1 << 10),
        "Size at which a driver's log is rotated; one older file is kept.",
        default="64 mb",
        write=size_setting,
    ),
    Option(
        "run.standby-timeout",
        duration(1),
        "How long the driver of a job must be silent before one that stands by "
        "(`turnback run --standby`) takes over.",
        default="15 s",
        write=duration_setting,
    ),
    Option(
        "log.level",
        choice(LogLevel),
        "Minimum log level: `debug`, `info`, `warning` or `error`.",
        default="info",
    ),
    Option(
        "log.format",
        choice(LogFormat),
        "Format of log lines: `text` or `json`.",
        default="text",
    ),
)

OPTIONS: tuple[Option, ...] = tuple(
    sorted(
        (
            *CheckpointSettings.options(),
            *RESTART_OPTIONS,
            *SavepointSettings.options(),
            *WatchdogSettings.options(),
            *AlertSettings.options(),
            *_STORAGE_OPTIONS,
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
    """The option that has this name."""
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


_HEAD = ("Key", "Default", "Description", "Other names")


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
