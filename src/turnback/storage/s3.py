"""Objects below a prefix of an S3 bucket, through `obstore` (the extra 's3')."""

from __future__ import annotations

import builtins
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from turnback.config.options import S3_OPTIONS
from turnback.core.units import parse_duration
from turnback.errors import AlreadyExistsError, ConfigurationError, NotFoundError, StorageError
from turnback.storage.base import split_path, split_prefix

if TYPE_CHECKING:
    from obstore.store import S3Store


_OPTIONS = {option.field: option for option in S3_OPTIONS}
_CLIENT_OPTIONS = ("allow_http", "allow_invalid_certificates", "proxy_url")
_TIMES = ("timeout", "connect_timeout", "retry_timeout")
_STORE_OPTIONS = _OPTIONS.keys() - {*_CLIENT_OPTIONS, *_TIMES, "max_retries"}
_PART = 16 * 1024 * 1024

# The process whose first request started obstore's threads. They do not survive a fork, and a
# child that used them all the same would hang, and its parent with it.
_process: int | None = None


class S3Storage:
    """Objects below `s3://bucket/prefix`; creation is atomic through `If-None-Match`.

    Settings come from the options and, where those are silent, from the usual environment
    variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION,
    AWS_ENDPOINT_URL, AWS_ALLOW_HTTP, ...) or the machine's role. Options, all of them strings:

    - access_key_id, secret_access_key, session_token, region, endpoint;
    - allow_http: 'true' to permit an endpoint without TLS;
    - virtual_hosted_style_request, skip_signature, server_side_encryption, sse_kms_key_id,
      allow_invalid_certificates, proxy_url: as in obstore;
    - timeout ('2 min'), connect_timeout ('5 s'): limits of one request;
    - max_retries ('10'), retry_timeout ('3 min'): limits of repeating it.

    The bucket must exist. Large files are uploaded in parts; let its life cycle remove incomplete
    uploads.
    """

    __slots__ = ("_options", "_store", "uri")

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        prefix = prefix.strip("/")
        self.uri = f"s3://{bucket}/{prefix}".rstrip("/")
        self._options = dict(options or {})
        if not bucket:
            raise ConfigurationError(f"{uri} has no bucket: use s3://BUCKET/PREFIX")
        try:
            split_prefix(prefix)
        except StorageError as error:
            raise ConfigurationError(f"{uri} cannot be used as storage: {error}") from None
        if importlib.util.find_spec("obstore") is None:
            raise ConfigurationError(f"{uri} needs obstore: pip install 'turnback[s3]'")
        self._store = _open(bucket, prefix, self._options)

    def put(self, path: str, data: bytes) -> None:
        with self._request("write", path) as store:
            store.put(path, data, chunk_size=_PART)

    def put_if_absent(self, path: str, data: bytes) -> None:
        from obstore.exceptions import AlreadyExistsError as Conflict

        with self._request("create", path) as store:
            try:
                store.put(path, data, mode="create")
            except Conflict:
                # Also the answer when S3 broke off two writes that met, and nothing is there:
                # then the look-up fails, and the outcome counts as unknown.
                store.head(path)
            else:
                return
        raise AlreadyExistsError(f"{path} is already in {self.uri}")

    def get(self, path: str) -> bytes:
        with self._request("read", path) as store:
            try:
                return bytes(store.get(path).bytes())
            except FileNotFoundError as error:
                # obstore takes every 404 for a missing object, that of a missing bucket too.
                if "<Code>NoSuchKey</Code>" not in str(error):
                    raise
        raise NotFoundError(f"{path} is not in {self.uri}")

    def list(self, prefix: str = "") -> builtins.list[str]:
        return builtins.list(self.sizes(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        below = "/".join(split_prefix(prefix)) or None
        with self._request("list", prefix) as store:
            sizes = [(e["path"], e["size"]) for chunk in store.list(below) for e in chunk]
        return dict(sorted(sizes))

    def folders(self, prefix: str = "") -> builtins.list[str]:
        below = "/".join(split_prefix(prefix)) or None
        with self._request("list", prefix) as store:
            prefixes = store.list_with_delimiter(below)["common_prefixes"]
        names = (path.rstrip("/").rpartition("/")[2] for path in prefixes)
        return sorted(name for name in names if name)

    def delete(self, path: str) -> None:
        with self._request("delete", path) as store:
            try:
                store.delete(path)
            except FileNotFoundError as error:
                if "<Code>NoSuchKey</Code>" not in str(error):
                    raise

    def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            split_path(path)
        with self._request("delete", paths[0]) as store:
            store.delete(list(paths))  # ten requests at a time

    @contextmanager
    def _request(self, action: str, path: str) -> Iterator[S3Store]:
        global _process
        from obstore.exceptions import BaseError

        if action != "list":
            split_path(path)
        if _process not in (None, os.getpid()):
            raise StorageError(
                f"cannot {action} {path} in {self.uri}: this process was forked from one that "
                "had already used S3; start processes with the 'spawn' method"
            )
        _process = os.getpid()
        try:
            yield self._store
        except (BaseError, OSError, ValueError) as error:
            what = path or "everything"
            raise StorageError(f"cannot {action} {what} in {self.uri}: {_reason(error)}") from error

    def __reduce__(self) -> tuple[type[S3Storage], tuple[str, dict[str, str]]]:
        return S3Storage, (self.uri, self._options)

    def __repr__(self) -> str:
        return f"S3Storage({self.uri!r})"


def _open(bucket: str, prefix: str, options: Mapping[str, str]) -> S3Store:
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    _check_names(bucket, options)
    allow_http = _allow_http(bucket, options)
    times = {
        name: timedelta(milliseconds=parse_duration(options.get(name, _default(name)), name))
        for name in _TIMES
    }
    # One DELETE per object is understood by every provider, the bulk request is not.
    config: Any = {"disable_bulk_delete": True}
    config |= {name: options[name] for name in _STORE_OPTIONS if name in options}
    client: Any = {name: options[name] for name in _CLIENT_OPTIONS if name in options}
    client |= {name: times[name] for name in ("timeout", "connect_timeout")}
    client["allow_http"] = allow_http
    try:
        retries = int(options.get("max_retries", _default("max_retries")))
        retry: Any = {"max_retries": retries, "retry_timeout": times["retry_timeout"]}
        return S3Store(
            bucket, prefix=prefix or None, config=config, client_options=client, retry_config=retry
        )
    except (BaseError, OSError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"cannot use s3://{bucket}: {_reason(error)}") from error


def _default(name: str) -> str:
    return _OPTIONS[name].default or ""


def _check_names(bucket: str, options: Mapping[str, str]) -> None:
    for name in options:
        if name not in _OPTIONS:
            close = get_close_matches(name, _OPTIONS, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ConfigurationError(
                f"s3://{bucket}: unknown option {name!r}{hint}; available: {', '.join(_OPTIONS)}"
            )


def _allow_http(bucket: str, options: Mapping[str, str]) -> bool:
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    given = [options.get("endpoint"), *(os.environ.get(name) for name in names)]
    endpoint = next((value for value in given if value), "")
    word = options.get("allow_http", os.environ.get("AWS_ALLOW_HTTP", "false"))
    allowed = word.lower() in ("true", "1", "yes", "on")
    if endpoint.lower().startswith("http://") and not allowed:
        raise ConfigurationError(
            f"s3://{bucket}: the endpoint {endpoint} has no TLS; to allow this, set allow_http "
            "to 'true'"
        )
    return allowed


def _reason(error: Exception) -> str:
    return str(error).partition("\n\nDebug source:")[0]
