"""`RedisSink`: the latest value of every key in Redis."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from turnback.config.option import column_names
from turnback.core.extras import require
from turnback.core.masking import hide, password_of, without_secret_parameters
from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import (
    CommitterContext,
    WriterContext,
    directory_digest,
    require_newest_attempt,
    sink_label,
)
from turnback.sinks.idempotent import IdempotentSink
from turnback.storage.locations import canonical_directory
from turnback.values.columns import Batch, json_column, stream_columns, text_column
from turnback.values.typeinfo import TypeInfo

_KEYS_AT_ONCE = 500
_VERSION_FIELD = "turnback_version"

_OWNER_KEYS = "turnback:owner:"
_VERSION_KEYS = "turnback:version:"
_DIGITS = 19

# What both scripts begin with. Only tasks of the newest attempt of the job that owns the keys may
# write, and whether that is so is seen in the same step as the write. Versions of different owners
# are not compared: a value that is not of this owner is older, however many attempts its owner has
# had. Of one epoch, the later task counts, and of one task the later attempt at it, in whatever
# order they come. Numbers of Lua have 53 bits, so all are compared as text of equal length.
_OF_OWNER = f"""
local claim, version, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local order, attempt = ARGV[4], tonumber(ARGV[5])
local note = redis.call('GET', KEYS[1])
if claim == '' and note then return -1 end
if claim ~= '' and not (note and string.find(note, '"claim":"' .. claim .. '"', 1, true)) then
  return -1
end
if note and (cjson.decode(note).attempt or 0) > attempt then return -1 end
local mark = claim == '' and '' or '.' .. claim
local function is_newer(known)
  if not known then return false end
  local rest = string.sub(known, {_DIGITS + 1})
  local colon = string.find(rest, ':', 1, true) or #rest + 1
  if string.sub(rest, 1, colon - 1) ~= mark then return false end
  local other = string.sub(known, 1, {_DIGITS})
  return other > version or (other == version and string.sub(rest, colon + 1) > order)
end
local written_as = version .. mark .. ':' .. order
"""
_SET_HASHES = f"""{_OF_OWNER}
local at, written = 6, 0
for i = 2, #KEYS do
  local key, count = KEYS[i], tonumber(ARGV[at])
  if not is_newer(redis.call('HGET', key, '{_VERSION_FIELD}')) then
    redis.call('DEL', key)
    redis.call('HSET', key, '{_VERSION_FIELD}', written_as, unpack(ARGV, at + 1, at + count))
    if ttl > 0 then redis.call('PEXPIRE', key, ttl) end
    written = written + 1
  end
  at = at + count + 1
end
return written
"""
_SET_STRINGS = f"""{_OF_OWNER}
local written = 0
for i = 2, #KEYS, 2 do
  if not is_newer(redis.call('GET', KEYS[i + 1])) then
    if ARGV[i + 4] == '1' then
      redis.call('SET', KEYS[i], ARGV[i + 5])
    else
      redis.call('DEL', KEYS[i])
    end
    redis.call('SET', KEYS[i + 1], written_as)
    if ttl > 0 then
      redis.call('PEXPIRE', KEYS[i], ttl)
      redis.call('PEXPIRE', KEYS[i + 1], ttl)
    end
    written = written + 1
  end
end
return written
"""
_REPLACE_NOTE = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


class _Owner(msgspec.Struct, frozen=True):
    """The job that keys belong to, as it is noted in Redis, and the driver of its newest attempt.

    The attempt is 0 until the first one has begun since the keys became its own. The claim stands
    for all that the job has written since then, and is part of the version of each value; older
    versions of Turnback had none.
    """

    job: str
    directory: str
    job_id: str = ""
    attempt: int = 0
    nonce: str = ""
    claim: str = ""


class RedisSink(IdempotentSink):
    """Writes the latest value of every key to Redis.

    Tasks write immediately, without waiting for the checkpoint; after a failure the same keys are
    written again. Each key stores the version of its value, attempt and epoch, and a script on the
    server compares it: a late value, from a task or a driver that was replaced, never overwrites a
    newer one. The same script checks the owner of the keys: a task of a former owner writes
    nothing, and fails. Key the stream by the same fields, so that one task writes a key.

    Readers see values before their checkpoint is complete.

    Layouts:

    - `hash`: a hash with one field per column, replaced as a whole; columns that are null are left
      out. The field `turnback_version` holds the version.
    - `string`: the one column of `values` as text, or a JSON object of several. If the one column
      is null the key is deleted. The version is in a key of its own, `turnback:version:<key>`.

    Elements whose keys begin with `turnback:version:` or `turnback:owner:` fail the task.

    Text is as in the CSV files of `FileSink`; bytes are stored as they are.

    Args:
        url: "redis://host:6379/0", "rediss://..." with TLS, or "unix:///path".
        key: The column, or columns, that make the key in Redis. Several are joined by ":".
        values: The columns to store; by default all but the key.
        layout: "hash" or "string".
        prefix: The prefix of all keys, for example "likes:". A prefix belongs to one job.
        ttl: Seconds after which a key expires unless it is written again; None for never.
        password_from: The environment variable with the password.

    Raises:
        ConfigurationError: An argument cannot be used, or redis is not installed.
    """

    kind = "redis"

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        key: str | Sequence[str],
        values: str | Sequence[str] | None = None,
        layout: str = "hash",
        prefix: str = "",
        ttl: float | None = None,
        password_from: str | None = None,
    ) -> None:
        require("redis", "redis", "RedisSink")
        self.url, given, self._secrets = _without_secrets(url)
        self.key = column_names("RedisSink: key", key, 1)
        self.values = column_names("RedisSink: values", values, 1) if values is not None else ()
        if layout not in ("hash", "string"):
            raise ConfigurationError(
                f"RedisSink: layout must be 'hash' or 'string', not {layout!r}"
            )
        if not isinstance(prefix, str):
            raise ConfigurationError(f"RedisSink: prefix must be a string, not {prefix!r}")
        if prefix.startswith((_OWNER_KEYS, _VERSION_KEYS)):
            raise ConfigurationError(
                f"RedisSink: keys that begin with {prefix!r} are reserved for Turnback; choose "
                "another prefix"
            )
        if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, int | float)):
            raise ConfigurationError(f"RedisSink: ttl must be a number of seconds, not {ttl!r}")
        if ttl is not None and not ttl >= 0.001:
            raise ConfigurationError(f"RedisSink: ttl must be at least a millisecond, not {ttl!r}")
        self.layout = layout
        self.prefix = prefix
        self.ttl = ttl
        self.password_from = password_from
        self._password = password_of("RedisSink", given, password_from, None)
        self._client: Any = None
        self._claim = ""
        self._ctx: WriterContext | None = None
        self._batches: list[Batch] = []
        self._last: dict[str, tuple[int, int]] = {}
        """Where the last element of each key is: the batch, and the row."""

    # -- on the driver

    def check_target(self, ctx: CommitterContext) -> None:
        if ctx.type is not None:
            self._columns(ctx.type)
        with self._connected(sink_label(ctx.job, ctx.uid)) as client:
            self._checked_owner(client.get(self._owner_key), ctx)

    def acquire_target(self, ctx: CommitterContext) -> None:
        self.check_target(ctx)
        if ctx.job_directory is None:
            return
        with self._connected(sink_label(ctx.job, ctx.uid)) as client:
            replace_note = client.register_script(_REPLACE_NOTE)
            while True:
                data = client.get(self._owner_key)
                owner = self._checked_owner(data, ctx)
                mine = self._new_owner(owner, ctx)
                if mine == owner:
                    return
                if replace_note([self._owner_key], [data or b"", msgspec.json.encode(mine)]):
                    return
                # Another job came first; look who it is.

    def describe(self) -> dict[str, str]:
        return {"kind": self.kind, "url": self.url, "prefix": self.prefix, "layout": self.layout}

    @property
    def _owner_key(self) -> str:
        return f"{_OWNER_KEYS}{self.prefix}"

    def _new_owner(self, owner: _Owner | None, ctx: CommitterContext) -> _Owner:
        """The job as the owner, with a new claim unless it goes on with what it has written."""
        assert ctx.job_directory is not None
        directory = canonical_directory(ctx.job_directory)
        goes_on = (
            owner is not None
            and owner.claim != ""
            and owner.directory == directory
            # Without an id the directory has had no job, so what was there before was deleted.
            and owner.job_id in ("", ctx.job_id)
            and not ctx.take_over
        )
        if not goes_on or owner is None:
            claim = secrets.token_hex(8)
            return _Owner(ctx.job, directory, ctx.job_id, ctx.attempt, ctx.nonce, claim)
        if not ctx.attempt:
            return owner
        return _Owner(ctx.job, directory, ctx.job_id, ctx.attempt, ctx.nonce, owner.claim)

    def _checked_owner(self, data: bytes | None, ctx: CommitterContext) -> _Owner | None:
        """Who owns the keys; refuses those of another job, and of attempts nobody knows of."""
        owner = None if data is None else msgspec.json.decode(data, type=_Owner)
        if ctx.job_directory is None or owner is None:
            return owner
        if owner.directory != canonical_directory(ctx.job_directory):
            if ctx.take_over:
                return owner
            raise ConfigurationError(
                f"{sink_label(ctx.job, ctx.uid)}: {self._keys} belong to job {owner.job!r} in "
                f"{owner.directory}, and two jobs must not write the same keys. Give this sink "
                f"another prefix; or stop job {owner.job!r} and take the keys over permanently "
                "with take_over_sinks=True (turnback run --take-over-sinks)"
            )
        require_newest_attempt(ctx, owner.job_id, owner.attempt, owner.nonce, self._keys)
        return owner

    @property
    def _keys(self) -> str:
        return f"keys with the prefix {self.prefix!r} in {self.url}"

    # -- in tasks

    def open(self, ctx: WriterContext) -> None:
        self._ctx = ctx
        self._batches = []
        self._last = {}
        self._connect_as_owner(ctx)

    def _connect_as_owner(self, ctx: WriterContext) -> None:
        with self._failures(sink_label(ctx.job, ctx.uid)):
            self._client = self._connect()
            data = self._client.get(self._owner_key)
        if data is None:
            self._claim = ""
            if not ctx.directory_id:
                return
            raise SinkError(
                f"{sink_label(ctx.job, ctx.uid)}: {self._owner_key!r} in {self.url}, which "
                "records the owner of the keys, is missing. It is written again when the job "
                "starts; make sure that Redis does not evict keys that do not expire "
                "(maxmemory-policy noeviction, or volatile-*)"
            )
        owner = msgspec.json.decode(data, type=_Owner)
        same_place = ctx.directory_id in ("", directory_digest(owner.directory))
        if not same_place or owner.job_id not in ("", ctx.job_id):
            raise ConfigurationError(
                f"{sink_label(ctx.job, ctx.uid)}: job {owner.job!r} in {owner.directory} has taken "
                f"over the {self._keys}"
            )
        self._require_newest(owner, ctx)
        self._claim = owner.claim

    def _require_newest(self, owner: _Owner, ctx: WriterContext) -> None:
        """Refuse a task whose attempt has not claimed the keys, or not as the last one.

        With the present claim its version would win over all values of claims before it, also over
        those that its own attempt has written since.
        """
        is_same_driver = ctx.nonce == owner.nonce or "" in (ctx.nonce, owner.nonce)
        if ctx.directory_id and not (ctx.attempt == owner.attempt and is_same_driver):
            raise SinkError(
                f"{sink_label(ctx.job, ctx.uid)}: attempt {ctx.attempt} can no longer write: "
                f"attempt {owner.attempt} or another start has claimed {self._keys}"
            )

    def write_batch(self, batch: Batch, ctx: WriterContext) -> None:
        self._columns(batch.type)
        number = len(self._batches)
        keys = self._key_texts(batch.arrow, ctx)
        self._last.update((key, (number, row)) for row, key in enumerate(keys))
        self._batches.append(batch)

    def flush(self) -> None:
        """Write the last value of each key.

        Not before the end of the epoch: a copy of the task that is killed in the middle would leave
        a value that its winner has long replaced.
        """
        assert self._ctx is not None, "call open first"
        of_batch: list[list[tuple[str, int]]] = [[] for _ in self._batches]
        for key, (number, row) in self._last.items():
            of_batch[number].append((key, row))
        for batch, wanted in zip(self._batches, of_batch, strict=True):
            if wanted:
                arrow = batch.arrow.take(pa.array([row for _, row in wanted], pa.int64()))
                self._write(arrow, self._columns(batch.type), [key for key, _ in wanted], self._ctx)

    def _write(
        self, arrow: pa.RecordBatch, values: list[str], keys: list[str], ctx: WriterContext
    ) -> None:
        columns = [arrow.column(arrow.schema.get_field_index(name)) for name in values]
        items = _hashes(values, columns) if self.layout == "hash" else _strings(values, columns)
        head = [
            self._claim,
            f"{ctx.version:0{_DIGITS}d}",
            int((self.ttl or 0) * 1000),
            f"{ctx.partition:0{_DIGITS}d}.{ctx.task_attempt_id:0{_DIGITS}d}",
            ctx.attempt,
        ]
        with self._failures(sink_label(ctx.job, ctx.uid)):
            script = self._client.register_script(
                _SET_HASHES if self.layout == "hash" else _SET_STRINGS
            )
            pipeline = self._client.pipeline(transaction=False)
            for start in range(0, len(keys), _KEYS_AT_ONCE):
                part = items[start : start + _KEYS_AT_ONCE]
                arguments = [*head, *(value for item in part for value in item)]
                script(self._all_keys(keys[start : start + _KEYS_AT_ONCE]), arguments, pipeline)
            written = pipeline.execute()
        if any(count < 0 for count in written):
            self._refuse_former_owner(ctx)

    def _refuse_former_owner(self, ctx: WriterContext) -> NoReturn:
        """Say who owns the keys now, after a script has written nothing."""
        self.close()
        self._connect_as_owner(ctx)
        raise SinkError(
            f"{sink_label(ctx.job, ctx.uid)}: {self._keys} were claimed again while attempt "
            f"{ctx.attempt} was writing epoch {ctx.epoch}; it has written nothing since"
        )

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_ctx": None, "_batches": [], "_last": {}}

    def _columns(self, kind: TypeInfo) -> list[str]:
        """The columns that are stored."""
        names = [name for name, _ in stream_columns(kind)]
        unknown = [name for name in (*self.key, *self.values) if name not in names]
        if unknown:
            raise ConfigurationError(
                f"{self!r}: key and values contain {', '.join(map(repr, unknown))}, but the "
                f"stream has {', '.join(map(repr, names))}"
            )
        values = list(self.values) or [name for name in names if name not in self.key]
        if not values:
            raise ConfigurationError(
                f"{self!r}: the stream has no column besides the key {', '.join(self.key)}; "
                "specify the columns to store with values"
            )
        if self.layout == "hash" and _VERSION_FIELD in values:
            raise ConfigurationError(
                f"{self!r}: the field {_VERSION_FIELD!r} of each hash is reserved for Turnback; "
                "rename the column, or omit it from values"
            )
        return values

    def _key_texts(self, arrow: pa.RecordBatch, ctx: WriterContext) -> list[str]:
        parts = []
        for name in self.key:
            column = arrow.column(arrow.schema.get_field_index(name))
            if column.null_count:
                raise SinkError(
                    f"{sink_label(ctx.job, ctx.uid)}: the key {name!r} is null in an element of "
                    f"epoch {ctx.epoch}; filter such elements out before the sink"
                )
            texts = text_column(column).cast(pa.string()).to_pylist()
            if len(self.key) > 1:
                texts = [text.replace("%", "%25").replace(":", "%3A") for text in texts]
            parts.append(texts)
        keys = [self.prefix + ":".join(row) for row in zip(*parts, strict=True)]
        for key in keys:
            if key.startswith((_OWNER_KEYS, _VERSION_KEYS)):
                raise SinkError(
                    f"{sink_label(ctx.job, ctx.uid)}: an element of epoch {ctx.epoch} has the "
                    f"key {key!r:.80}, but keys that begin with {_OWNER_KEYS!r} or "
                    f"{_VERSION_KEYS!r} are reserved for Turnback. Give the sink a prefix, or "
                    "filter such elements out before"
                )
        return keys

    def _all_keys(self, keys: Sequence[str]) -> list[str]:
        if self.layout == "hash":
            return [self._owner_key, *keys]
        pairs = [name for key in keys for name in (key, f"{_VERSION_KEYS}{key}")]
        return [self._owner_key, *pairs]

    # -- connections

    def _connect(self) -> Any:
        redis = require("redis", "redis", "RedisSink")
        return redis.Redis.from_url(
            self.url,
            password=self._password,
            socket_connect_timeout=10,
            socket_timeout=60,
            **self._secrets,
        )

    @contextmanager
    def _connected(self, sink: str) -> Iterator[Any]:
        with self._failures(sink):
            client = self._connect()
            try:
                yield client
            finally:
                client.close()

    @contextmanager
    def _failures(self, sink: str) -> Iterator[None]:
        errors = require("redis.exceptions", "redis", "RedisSink")
        try:
            yield
        except errors.RedisError as error:
            reason = hide((self._password, *self._secrets.values()), error)
            text = f"{sink}: Redis at {self.url}: {reason}"
            if isinstance(error, errors.AuthenticationError | errors.NoPermissionError):
                raise ConfigurationError(
                    f"{text}. The password comes from the url, or from the environment variable "
                    "in password_from"
                ) from None
            if isinstance(error, errors.ReadOnlyError):
                raise ConfigurationError(f"{text}. It is a replica: use its primary") from None
            raise SinkError(text) from None

    def __repr__(self) -> str:
        return f"RedisSink({self.url!r}, key={list(self.key)!r}, prefix={self.prefix!r})"


def _stored(column: pa.Array) -> list[Any]:
    if pt.is_binary(column.type) or pt.is_large_binary(column.type):
        return list(column.to_pylist())
    return list(text_column(column).cast(pa.string()).to_pylist())


def _hashes(names: Sequence[str], columns: Sequence[pa.Array]) -> list[list[Any]]:
    texts = [_stored(column) for column in columns]
    hashes = []
    for row in zip(*texts, strict=True):
        pairs = [x for pair in zip(names, row, strict=True) if pair[1] is not None for x in pair]
        hashes.append([len(pairs), *pairs])
    return hashes


def _strings(names: Sequence[str], columns: Sequence[pa.Array]) -> list[list[Any]]:
    if len(columns) == 1:
        return [[0, ""] if value is None else [1, value] for value in _stored(columns[0])]
    encode = msgspec.json.Encoder().encode
    rows = zip(*(json_column(column) for column in columns), strict=True)
    return [[1, encode(dict(zip(names, row, strict=True)))] for row in rows]


def _without_secrets(url: str) -> tuple[str, str | None, dict[str, str]]:
    """A URL without its secrets, the password, and what else is secret, as the client takes it."""
    problem = (
        "RedisSink: url must be 'redis://host:6379/0', 'rediss://host:6380/0' or 'unix:///path'"
    )
    if not isinstance(url, str):
        raise ConfigurationError(problem)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigurationError(problem) from None  # the error may quote the password
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigurationError(problem)
    user, _, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    netloc = f"{name}@{host}" if name else host
    query, hidden = without_secret_parameters(parts.query)
    secrets = {key: unquote(value) for key, value in hidden.items()}  # once more, as the client
    in_query = secrets.pop("password", None)
    password = unquote(parts.password) if parts.password else in_query
    return urlunsplit(parts._replace(netloc=netloc, query=query)), password, secrets
