"""Objects below a prefix of a bucket of S3, Google Cloud Storage or Azure, through `obstore`."""

from __future__ import annotations

import builtins
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Self

from turnback.config.option import Option
from turnback.config.options import AZURE_OPTIONS, GCS_OPTIONS, S3_OPTIONS
from turnback.core.units import parse_duration
from turnback.errors import AlreadyExistsError, ConfigurationError, NotFoundError, StorageError
from turnback.storage.base import split_path, split_prefix

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store


_CLIENT_OPTIONS = ("allow_http", "allow_invalid_certificates", "proxy_url")
_TIMES = ("timeout", "connect_timeout", "retry_timeout")
_PART = 16 * 1024 * 1024

# The process whose first request started obstore's threads. They do not survive a fork, and a
# child that used them all the same would hang, and its parent with it.
_process: int | None = None


@dataclass(frozen=True)
class _Kind:
    """Where one kind of store differs from the others.

    Attributes:
        name: What people call it.
        extra: The extra of this package that it needs.
        store: The class of `obstore`.
        url: How a URL of it looks.
        options: What can be configured.
        prefix: What the names of all options begin with.
        renamed: Options that have another name in `obstore`, with that name.
        fixed: Further settings of `obstore`.
        missing: What an answer says when there is no such object; that of a missing bucket is
            another one, but `obstore` reports both alike.
        endpoints: Variables that name an endpoint.
        allow_http: The variable that allows an endpoint without TLS.
    """

    name: str
    extra: str
    store: str
    url: str
    options: tuple[Option, ...]
    missing: tuple[str, ...]
    endpoints: tuple[str, ...]
    allow_http: str
    prefix: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def by_name(self) -> dict[str, Option]:
        return {option.field: option for option in self.options}

    def says_missing(self, error: FileNotFoundError) -> bool:
        return any(words in str(error) for words in self.missing)


class ObjectStorage:
    """Objects below a prefix of a bucket; creation is atomic through a condition of the request."""

    __slots__ = ("_options", "_store", "uri")

    _kind: ClassVar[_Kind]

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        scheme, _, rest = uri.partition("://")
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.strip("/")
        self.uri = f"{scheme}://{bucket}/{prefix}".rstrip("/")
        self._options = dict(options or {})
        place = self._place(uri, bucket)
        try:
            split_prefix(prefix)
            self._check(prefix)
        except StorageError as error:
            raise ConfigurationError(f"{uri} cannot be used as storage: {error}") from None
        if importlib.util.find_spec("obstore") is None:
            raise ConfigurationError(
                f"{uri} needs obstore: pip install 'turnback[{self._kind.extra}]'"
            )
        self._store = self._open(f"{scheme}://{bucket}", prefix or None, place)

    def _place(self, uri: str, bucket: str) -> dict[str, str]:
        """The settings of `obstore` that follow from the first part of a URL."""
        if not bucket:
            raise ConfigurationError(f"{uri} has no bucket: use {self._kind.url}")
        return {"bucket": bucket}

    def _open(self, url: str, prefix: str | None, place: dict[str, str]) -> Any:
        import obstore.store
        from obstore.exceptions import BaseError

        kind = self._kind
        _check_names(kind, url, self._options)
        given = {name.removeprefix(kind.prefix): text for name, text in self._options.items()}
        defaults = {o.field.removeprefix(kind.prefix): o.default or "" for o in kind.options}
        settings = defaults | given
        times = {
            name: timedelta(milliseconds=parse_duration(settings[name], f"{kind.prefix}{name}"))
            for name in _TIMES
        }
        client: Any = {name: given[name] for name in _CLIENT_OPTIONS if name in given}
        client |= {name: times[name] for name in ("timeout", "connect_timeout")}
        client["allow_http"] = _allow_http(kind, url, self._options)
        of_store = given.keys() - {*_CLIENT_OPTIONS, *_TIMES, "max_retries"}
        config = place | {kind.renamed.get(name, name): given[name] for name in of_store}
        try:
            retries = int(settings["max_retries"])
            return getattr(obstore.store, kind.store)(
                prefix=prefix,
                config={**kind.fixed, **config},
                client_options=client,
                retry_config={"max_retries": retries, "retry_timeout": times["retry_timeout"]},
            )
        except (BaseError, OSError, ValueError, OverflowError) as error:
            raise ConfigurationError(f"cannot use {url}: {_reason(error)}") from error

    def _check(self, path: str) -> None:
        """Raise `StorageError` for a name that the store would change."""

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
                if not self._kind.says_missing(error):
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
                if not self._kind.says_missing(error):
                    raise

    def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            split_path(path)
            self._check(path)
        with self._request("delete", paths[0]) as store:
            try:
                store.delete(list(paths))  # ten requests at a time
            except FileNotFoundError as error:
                if not self._kind.says_missing(error):
                    raise
            else:
                return
        for path in paths:
            self.delete(path)  # Google and Azure stop at the first that is missing

    @contextmanager
    def _request(self, action: str, path: str) -> Iterator[S3Store | GCSStore | AzureStore]:
        global _process
        from obstore.exceptions import BaseError

        if action != "list":
            split_path(path)
            self._check(path)
        if _process not in (None, os.getpid()):
            raise StorageError(
                f"cannot {action} {path} in {self.uri}: this process was forked from one that "
                f"had already used {self._kind.name}; start processes with the 'spawn' method"
            )
        _process = os.getpid()
        try:
            yield self._store
        except (BaseError, OSError, ValueError) as error:
            what = path or "everything"
            raise StorageError(f"cannot {action} {what} in {self.uri}: {_reason(error)}") from error

    def __reduce__(self) -> tuple[type[Self], tuple[str, dict[str, str]]]:
        return type(self), (self.uri, self._options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"


class S3Storage(ObjectStorage):
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

    __slots__ = ()

    _kind = _Kind(
        name="S3",
        extra="s3",
        store="S3Store",
        url="s3://BUCKET/PREFIX",
        options=S3_OPTIONS,
        # One DELETE per object is understood by every provider, the bulk request is not.
        fixed={"disable_bulk_delete": True},
        missing=("<Code>NoSuchKey</Code>",),
        endpoints=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        allow_http="AWS_ALLOW_HTTP",
    )


class GcsStorage(ObjectStorage):
    """Objects below `gs://bucket/prefix`; creation is atomic through `x-goog-if-generation-match`.

    Settings come from the options and, where those are silent, from the usual environment
    variables (GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT, GOOGLE_SERVICE_ACCOUNT_KEY,
    GOOGLE_BASE_URL, GOOGLE_ALLOW_HTTP, ...) or the machine's account. Options, all of them strings:

    - gcs_service_account: the file with the key of a service account, on every machine;
    - gcs_service_account_key: that key itself, as JSON;
    - gcs_endpoint, gcs_allow_http, gcs_allow_invalid_certificates, gcs_proxy_url, gcs_timeout,
      gcs_connect_timeout, gcs_max_retries, gcs_retry_timeout: without the prefix, those of
      `S3Storage`.

    The bucket must exist. Large files are uploaded in parts; let its life cycle remove incomplete
    uploads.
    """

    __slots__ = ()

    _kind = _Kind(
        name="Google Cloud Storage",
        extra="gcs",
        store="GCSStore",
        url="gs://BUCKET/PREFIX",
        options=GCS_OPTIONS,
        prefix="gcs_",
        renamed={"endpoint": "base_url"},
        missing=("<Code>NoSuchKey</Code>",),
        endpoints=("GOOGLE_BASE_URL",),
        allow_http="GOOGLE_ALLOW_HTTP",
    )


class AzureStorage(ObjectStorage):
    """Objects below `abfss://container@account.dfs.core.windows.net/prefix`.

    Creation is atomic through `If-None-Match`. The Blob service is used, at
    `https://account.blob.core.windows.net`, also if the URL names another domain than Azure's
    public one. Settings come from the options and, where those are silent, from the usual
    environment variables (AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID,
    AZURE_CLIENT_SECRET, AZURE_TENANT_ID, AZURE_FEDERATED_TOKEN_FILE, AZURE_STORAGE_ENDPOINT,
    AZURE_ALLOW_HTTP, ...) or the machine's identity. Options, all of them strings:

    - azure_account_key; azure_sas_token; or azure_tenant_id, azure_client_id and
      azure_client_secret of a service principal;
    - azure_endpoint, azure_allow_http, azure_allow_invalid_certificates, azure_proxy_url,
      azure_timeout, azure_connect_timeout, azure_max_retries, azure_retry_timeout: without the
      prefix, those of `S3Storage`.

    The container must exist. Azure takes a backslash for a slash and drops a dot at the end of a
    name, so paths that have one are refused.
    """

    __slots__ = ()

    _kind = _Kind(
        name="Azure",
        extra="azure",
        store="AzureStore",
        url="abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX",
        options=AZURE_OPTIONS,
        prefix="azure_",
        renamed={"sas_token": "sas_key"},
        # Objects are deleted in a batch, whose answer is in words.
        missing=("<Code>BlobNotFound</Code>", "The specified blob does not exist"),
        endpoints=("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        allow_http="AZURE_ALLOW_HTTP",
    )

    def _place(self, uri: str, bucket: str) -> dict[str, str]:
        found = _AZURE_PLACE.fullmatch(bucket)
        if found is None:
            raise ConfigurationError(
                f"{uri} names no container and account: use {self._kind.url}, in lower case"
            )
        place = {"container_name": found["container"], "account_name": found["account"]}
        if found["domain"] != "core.windows.net":
            place["endpoint"] = f"https://{found['account']}.blob.{found['domain']}"
        return place

    def _check(self, path: str) -> None:
        if "\\" in path or any(segment.endswith(".") for segment in path.split("/")):
            raise StorageError(
                f"cannot use {path!r} in {self.uri}: Azure has no names with a backslash or with a "
                "dot at the end"
            )


_AZURE_PLACE = re.compile(
    r"(?P<container>[a-z0-9$][a-z0-9-]*)@(?P<account>[a-z0-9]+)\.dfs\.(?P<domain>[a-z0-9.-]+)"
)


def _check_names(kind: _Kind, place: str, options: Mapping[str, str]) -> None:
    known = kind.by_name()
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ConfigurationError(
                f"{place}: unknown option {name!r}{hint}; available: {', '.join(known)}"
            )


def _allow_http(kind: _Kind, place: str, options: Mapping[str, str]) -> bool:
    given = [options.get(f"{kind.prefix}endpoint"), *map(os.environ.get, kind.endpoints)]
    endpoint = next((value for value in given if value), "")
    name = f"{kind.prefix}allow_http"
    word = options.get(name, os.environ.get(kind.allow_http, "false"))
    allowed = word.lower() in ("true", "1", "yes", "on")
    if endpoint.lower().startswith("http://") and not allowed:
        raise ConfigurationError(
            f"{place}: the endpoint {endpoint} has no TLS; to allow this, set {name} to 'true'"
        )
    return allowed


def _reason(error: Exception) -> str:
    return str(error).partition("\n\nDebug source:")[0]
