"""Keys of object stores: Flink's names for the options of `turnback.storage.s3`."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from turnback.config.option import Option, count, duration, flag, text
from turnback.core.errors import ConfigurationError
from turnback.core.units import duration_setting

_VIRTUAL_HOSTED = "virtual_hosted_style_request"


def _time(key: str, default: str, field: str, doc: str) -> Option:
    return Option(key, duration(1), doc, default, field, write=duration_setting)


# The field is the option of `S3Storage`; path style is the opposite of its option.
S3_OPTIONS = (
    Option(
        "s3.endpoint",
        text,
        "Address of the object store; not needed for Amazon's own.",
        field="endpoint",
    ),
    Option("s3.access-key", text, "Name of the access key.", field="access_key_id"),
    Option(
        "s3.secret-key", text, "Secret of the access key.", field="secret_access_key", secret=True
    ),
    Option(
        "s3.session-token",
        text,
        "Token that goes with a temporary access key.",
        field="session_token",
        secret=True,
    ),
    Option(
        "s3.region",
        text,
        "Region of the bucket.",
        field="region",
        aliases=("s3.endpoint.region",),
    ),
    Option(
        "s3.path.style.access",
        flag,
        "Whether the bucket is part of the path, as most stores other than Amazon's want it, "
        "instead of the host's name.",
        default="true",
        field=_VIRTUAL_HOSTED,
        aliases=("s3.path-style-access",),
    ),
    Option(
        "s3.allow-http",
        flag,
        "Whether an endpoint without TLS may be used.",
        default="false",
        field="allow_http",
    ),
    Option(
        "s3.allow-invalid-certificates",
        flag,
        "Whether certificates go unchecked; for tests.",
        default="false",
        field="allow_invalid_certificates",
    ),
    Option(
        "s3.skip-signature",
        flag,
        "Whether requests go unsigned, for public buckets.",
        default="false",
        field="skip_signature",
    ),
    Option(
        "s3.server-side-encryption",
        text,
        "How the store encrypts objects, such as `AES256` or `aws:kms`.",
        field="server_side_encryption",
    ),
    Option("s3.sse-kms-key-id", text, "The key it encrypts them with.", field="sse_kms_key_id"),
    # Proxies often have a password in their address.
    Option(
        "s3.proxy-url", text, "Proxy for requests to the store.", field="proxy_url", secret=True
    ),
    _time("s3.timeout", "2 min", "timeout", "Most time one request may take."),
    _time("s3.connect-timeout", "5 s", "connect_timeout", "Most time to connect."),
    _time("s3.retry-timeout", "3 min", "retry_timeout", "Most time to repeat a request for."),
    Option(
        "s3.max-retries",
        count(0, 1_000),
        "How often a request is repeated.",
        default="10",
        field="max_retries",
    ),
)
_BY_FIELD = {option.field: option for option in S3_OPTIONS}


def as_storage_options(settings: Mapping[str, str]) -> dict[str, str]:
    """Options of `S3Storage` for configuration keys; other keys are ignored."""
    found = {}
    for option in S3_OPTIONS:
        if option.key in settings:
            value = settings[option.key]
            found[option.field] = _opposite(value) if option.field == _VIRTUAL_HOSTED else value
    return found


def from_storage_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration keys for options of `S3Storage`.

    Raises:
        ConfigurationError: There is no such option.
    """
    settings = {}
    for name, value in options.items():
        option = _BY_FIELD.get(name)
        if option is None:
            near = get_close_matches(name, _BY_FIELD, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"unknown storage option {name!r}{hint}")
        settings[option.key] = _opposite(value) if name == _VIRTUAL_HOSTED else value
    return settings


def _opposite(value: Any) -> str:
    return "false" if flag(_VIRTUAL_HOSTED, value) else "true"
