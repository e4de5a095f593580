"""State descriptors: the name and the type of a state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any, ClassVar, Generic, Self, TypedDict, TypeVar, Unpack, overload

from turnback.core.ids import check_state_name
from turnback.errors import StateError, UnsupportedTypeError
from turnback.functions.event_time import Duration, as_milliseconds
from turnback.values.hints import as_type
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import ListTypeInfo, MapTypeInfo, RowTypeInfo, TypeInfo

_MONTH = Duration.of_days(30)
E = TypeVar("E", bound=Enum)


class CleanupStrategy:
    """How values that have expired are removed although nobody reads them."""


@dataclass(frozen=True)
class EmptyCleanupStrategy(CleanupStrategy):
    """One that has nothing to be said about it."""


@dataclass(frozen=True)
class IncrementalCleanupStrategy(CleanupStrategy):
    """For every entry that is written, the local store looks at some others."""

    cleanup_size: int = 5
    for_every_record: bool = False

    def get_cleanup_size(self) -> int:
        return self.cleanup_size

    def run_cleanup_for_every_record(self) -> bool:
        return self.for_every_record


@dataclass(frozen=True)
class CompactFilterCleanupStrategy(CleanupStrategy):
    """Merging state files leaves out what has expired."""

    query_time_after_num_entries: int = 1000
    periodic_compaction_time: Duration = _MONTH

    def get_query_time_after_num_entries(self) -> int:
        return self.query_time_after_num_entries

    def get_periodic_compaction_time(self) -> Duration:
        return self.periodic_compaction_time


class CleanupStrategyName(Enum):
    """The strategies there are besides the removal of what is read."""

    FULL_STATE_SCAN_SNAPSHOT = 0
    INCREMENTAL_CLEANUP = 1
    ROCKSDB_COMPACTION_FILTER = 2


@dataclass(frozen=True)
class TtlCleanupStrategies:
    """When expired values are removed; those that are read always are.

    Attributes:
        chosen: The strategies that were chosen.
        in_background: Whether the others are used as well, except at snapshots.
    """

    Strategies: ClassVar = CleanupStrategyName
    CleanupStrategy: ClassVar = CleanupStrategy
    EmptyCleanupStrategy: ClassVar = EmptyCleanupStrategy
    IncrementalCleanupStrategy: ClassVar = IncrementalCleanupStrategy
    RocksdbCompactFilterCleanupStrategy: ClassVar = CompactFilterCleanupStrategy
    EMPTY_STRATEGY: ClassVar = EmptyCleanupStrategy()

    chosen: Mapping[CleanupStrategyName, Any] = field(default_factory=dict)
    in_background: bool = True

    def is_cleanup_in_background(self) -> bool:
        return self.in_background

    def in_full_snapshot(self) -> bool:
        return CleanupStrategyName.FULL_STATE_SCAN_SNAPSHOT in self.chosen

    def get_incremental_cleanup_strategy(self) -> Any:
        """The strategy of local stores; None without one."""
        default = self.IncrementalCleanupStrategy() if self.in_background else None
        return self.chosen.get(CleanupStrategyName.INCREMENTAL_CLEANUP, default)

    def get_rocksdb_compact_filter_cleanup_strategy(self) -> Any:
        """The strategy of merging; None without one."""
        default = self.RocksdbCompactFilterCleanupStrategy() if self.in_background else None
        return self.chosen.get(CleanupStrategyName.ROCKSDB_COMPACTION_FILTER, default)


@dataclass(frozen=True)
class StateTtlConfig:
    """The time to live of a state, for `StateDescriptor.enable_time_to_live`.

    Values, elements of lists and entries of maps expire individually, when the last update was
    `ttl` ago or longer, by the clock of the driver at the beginning of the epoch. Expired state is
    removed when it is read, when state files are merged, and gradually from local stores. Create
    one with `new_builder`.
    """

    class UpdateType(Enum):
        """Which operations count as an update, which restarts the time to live."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether an expired value is returned if it has not been removed yet."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        """The clock that is used: that of the driver, at the beginning of the epoch."""

        ProcessingTime = 0

    CleanupStrategies: ClassVar = TtlCleanupStrategies
    Builder: ClassVar[type[StateTtlConfigBuilder]]

    update_type: UpdateType
    state_visibility: StateVisibility
    ttl_time_characteristic: TtlTimeCharacteristic
    ttl: Duration
    cleanup_strategies: TtlCleanupStrategies

    @staticmethod
    def new_builder(ttl: Any) -> StateTtlConfigBuilder:
        """Start with the time to live: a `Time`, a `Duration` or a `timedelta`."""
        return StateTtlConfigBuilder(ttl)

    def get_update_type(self) -> UpdateType:
        return self.update_type

    def get_state_visibility(self) -> StateVisibility:
        return self.state_visibility

    def get_ttl(self) -> Duration:
        return self.ttl

    def get_ttl_time_characteristic(self) -> TtlTimeCharacteristic:
        return self.ttl_time_characteristic

    def is_enabled(self) -> bool:
        return self.update_type is not StateTtlConfig.UpdateType.Disabled

    def get_cleanup_strategies(self) -> TtlCleanupStrategies:
        return self.cleanup_strategies


class StateTtlConfigBuilder:
    """Builds a `StateTtlConfig`; all its methods except `build` return the builder itself."""

    def __init__(self, ttl: Any) -> None:
        self._ttl = _length(ttl)
        self._update_type = StateTtlConfig.UpdateType.OnCreateAndWrite
        self._visibility = StateTtlConfig.StateVisibility.NeverReturnExpired
        self._characteristic = StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
        self._strategies: dict[CleanupStrategyName, CleanupStrategy] = {}
        self._in_background = True

    def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfigBuilder:
        """Set which operations count as an update."""
        self._update_type = _member("set_update_type", update_type, StateTtlConfig.UpdateType)
        return self

    def update_ttl_on_create_and_write(self) -> StateTtlConfigBuilder:
        """Count from the last write; this is the default."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> StateTtlConfigBuilder:
        """Count from the last write or read; every read then writes to the state files."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

    def set_state_visibility(
        self, state_visibility: StateTtlConfig.StateVisibility
    ) -> StateTtlConfigBuilder:
        """Set whether expired values are returned."""
        self._visibility = _member(
            "set_state_visibility", state_visibility, StateTtlConfig.StateVisibility
        )
        return self

    def return_expired_if_not_cleaned_up(self) -> StateTtlConfigBuilder:
        """Return an expired value once, if nothing has removed it yet."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

    def never_return_expired(self) -> StateTtlConfigBuilder:
        """Never return an expired value; this is the default."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

    def set_ttl_time_characteristic(
        self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
    ) -> StateTtlConfigBuilder:
        """Set the clock; as in Flink there is only one, processing time."""
        self._characteristic = _member(
            "set_ttl_time_characteristic",
            ttl_time_characteristic,
            StateTtlConfig.TtlTimeCharacteristic,
        )
        return self

    def use_processing_time(self) -> StateTtlConfigBuilder:
        """Use processing time; this is the default."""
        return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

    def cleanup_full_snapshot(self) -> StateTtlConfigBuilder:
        """Omit expired state from savepoints; the job's own state keeps it."""
        self._strategies[CleanupStrategyName.FULL_STATE_SCAN_SNAPSHOT] = EmptyCleanupStrategy()
        return self

    def cleanup_incrementally(
        self, cleanup_size: int, run_cleanup_for_every_record: bool
    ) -> StateTtlConfigBuilder:
        """Let local stores check `cleanup_size` entries for every entry that is written.

        Args:
            cleanup_size: The number of entries; 5 by default.
            run_cleanup_for_every_record: Ignored, because stores are written per epoch.
        """
        self._strategies[CleanupStrategyName.INCREMENTAL_CLEANUP] = IncrementalCleanupStrategy(
            _count("cleanup_incrementally", cleanup_size), bool(run_cleanup_for_every_record)
        )
        return self

    def cleanup_in_rocksdb_compact_filter(
        self, query_time_after_num_entries: int, periodic_compaction_time: Any = None
    ) -> StateTtlConfigBuilder:
        """Remove expired state when state files are merged, whatever the backend.

        Both arguments are ignored: a merge reads the clock once, and how often files are merged
        depends on their sizes.
        """
        method = "cleanup_in_rocksdb_compact_filter"
        period = _MONTH
        if periodic_compaction_time is not None:
            what = f"{method}: periodic_compaction_time"
            period = Duration(as_milliseconds(periodic_compaction_time, what))
        entries = _count(method, query_time_after_num_entries)
        self._strategies[CleanupStrategyName.ROCKSDB_COMPACTION_FILTER] = (
            CompactFilterCleanupStrategy(entries, period)
        )
        return self

    def disable_cleanup_in_background(self) -> StateTtlConfigBuilder:
        """Remove only state that is read, and use only the strategies chosen by their methods."""
        self._in_background = False
        return self

    def set_ttl(self, ttl: Any) -> StateTtlConfigBuilder:
        """Set the time to live."""
        self._ttl = _length(ttl)
        return self

    def build(self) -> StateTtlConfig:
        return StateTtlConfig(
            self._update_type,
            self._visibility,
            self._characteristic,
            self._ttl,
            TtlCleanupStrategies(dict(self._strategies), self._in_background),
        )


StateTtlConfig.Builder = StateTtlConfigBuilder


def _length(ttl: Any) -> Duration:
    return Duration(as_milliseconds(ttl, "StateTtlConfig: the time to live", least=1))


def _member(method: str, given: Any, wanted: type[E]) -> E:
    if not isinstance(given, wanted):
        choices = ", ".join(f"{wanted.__name__}.{each.name}" for each in wanted)
        raise StateError(f"StateTtlConfig: {method} takes one of {choices}, got {given!r:.80}")
    return given


def _count(method: str, given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise StateError(f"StateTtlConfig: {method} takes a number of 1 or more, got {given!r:.80}")
    return given


_Rows = dict[str, list[tuple[str, RowTypeInfo]]]


class EvolutionOptions(TypedDict, total=False):
    """Options of every descriptor for state stored with another type; see `StateDescriptor`."""

    aliases: Mapping[str, str] | None
    migrate: Callable[[Any], Any] | None
    migrate_from: Any


@dataclass(frozen=True, slots=True)
class EvolutionRules:
    """How stored values become values of the type declared now.

    Attributes:
        aliases: Pairs of the path of a field in the new type and its old name.
        migrate: Makes a new value from an old one; None when the built-in rules apply.
        migrate_from: The type whose values `migrate` takes; None for the stored one.
    """

    aliases: tuple[tuple[str, str], ...] = ()
    migrate: Callable[[Any], Any] | None = None
    migrate_from: TypeInfo | None = None


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")


class StateNotBoundError(StateError, AttributeError):
    """A declared state was used before the runtime has bound it."""


class StateDescriptor:
    """Names and types one state of a function.

    As a class attribute of a function it also declares the state: the runtime replaces it, per
    instance, by the state's handle. Immutable, but for `enable_time_to_live`, which completes it.

    When a job starts from state that was stored with another type, fields are matched by name: new
    ones get the default of their class or None, others are dropped, numbers may become wider. All
    else is controlled by options, which are not part of the stored state:

    - ``aliases``: old names of renamed fields, ``{"clicks": "click_count"}``. A field inside of
      another is written as a path, ``{"user.clicks": "click_count"}``, where lists and maps on the
      way are passed through; the old name is always one of the same row.
    - ``migrate``: a function from an old value (list element, map value, accumulator) to a new one,
      in place of all built-in rules. It is called for values stored with another type than the one
      declared now, and only for those: it may stay in the program until the type changes again,
      and values that change their meaning but not their type need a state of a new name. None is
      kept as it is.
    - ``migrate_from``: the type ``migrate`` expects. Values then come as instances of its class,
      not as `Row`, and values stored with any third type are refused.

    Attributes:
        name: Unique among the states of one operator; restore finds the state by it.
        kind: ``value``, ``list``, ``map``, ``reducing`` or ``aggregating``.
        attribute: Name of the class attribute it was given to, if any.
        ttl: How long values live; None for ever.
        definition: What the values stand for, where Turnback keeps them and their type does not
            tell; see `StateSchema`.
        accumulators: By field of the value, what makes the accumulator that it is; None if only
            the type is known. Under the empty name, what the value as a whole is. Accumulators of
            something else are not taken over.
    """

    kind: ClassVar[str]
    name: str
    attribute: str | None
    ttl: StateTtlConfig | None
    definition: str | None
    accumulators: Mapping[str, str] | None
    _type: TypeInfo | None
    _key_type: TypeInfo | None
    _problem: str | None
    _rules: EvolutionRules

    def __init__(self, name: str, type: Any, **options: Unpack[EvolutionOptions]) -> None:
        self._declare(options, name, type)

    def _declare(self, options: EvolutionOptions, name: str, type: Any, *key_type: Any) -> None:
        state = f"state {check_state_name(name)!r}"
        (own, key), problem = _resolve(state, type, *key_type)
        migrate_from = options.get("migrate_from")
        old = None
        if migrate_from is not None:
            (old, _), unreadable = _resolve(f"{state}: migrate_from", migrate_from)
            problem = problem or unreadable
        aliases = _checked_aliases(state, options.get("aliases"), own)
        rules = EvolutionRules(aliases, options.get("migrate"), old)
        _check_migrate(state, rules, migrate_from is not None, own)
        fields = {"_type": own, "_key_type": key, "_problem": problem, "_rules": rules}
        vars(self).update(
            fields, name=name, attribute=None, ttl=None, definition=None, accumulators=None
        )

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> Self:
        """Let values expire some time after their last update; returns the descriptor itself.

        To be called before the state is asked for. One with `UpdateType.Disabled` switches it off.
        """
        if not isinstance(ttl_config, StateTtlConfig):
            raise StateError(
                f"state {self.name!r}: enable_time_to_live takes a StateTtlConfig, such as "
                f"StateTtlConfig.new_builder(Time.hours(1)).build(), got {ttl_config!r:.80}"
            )
        vars(self)["ttl"] = ttl_config if ttl_config.is_enabled() else None
        return self

    def defined_as(self, definition: str | None) -> Self:
        """Say what the values stand for; returns the descriptor itself. For Turnback's own use."""
        vars(self)["definition"] = definition
        return self

    def accumulated_by(self, accumulators: Mapping[str, str] | None) -> Self:
        """Say what makes the accumulators it holds; for Turnback's own use."""
        vars(self)["accumulators"] = accumulators
        return self

    @property
    def type(self) -> TypeInfo:
        """Type of the value, of a list's elements, of a map's values or of the accumulator."""
        self.check()
        assert self._type is not None
        return self._type

    @property
    def key_type(self) -> TypeInfo | None:
        self.check()
        return self._key_type

    @property
    def rules(self) -> EvolutionRules:
        """How values that were stored with another type are read."""
        self.check()
        return self._rules

    def check(self) -> None:
        """Raise `UnsupportedTypeError`, naming the state, if its values could not be stored.

        Not done when it is made: only the planner knows which operator to blame.
        """
        if self._problem is not None:
            raise UnsupportedTypeError(self._problem)

    def __set_name__(self, owner: Any, name: str) -> None:
        vars(self)["attribute"] = name

    @overload
    def __get__(self, instance: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: Any = None) -> Any: ...
    def __get__(self, instance: object | None, owner: Any = None) -> Any:
        if instance is None:
            return self
        # Not a data descriptor: once the handle is in the instance's __dict__ this is not reached.
        raise StateNotBoundError(
            f"state {self.name!r} of {instance.__class__.__name__} is not available yet: use it "
            "from open() on, in a function of a keyed stream, not in its constructor"
        )

    def __setattr__(self, name: str, *value: Any) -> None:
        raise AttributeError(f"{self.__class__.__name__} is immutable")

    __delattr__ = __setattr__

    def _identity(self) -> tuple[Any, ...]:
        types = self._type, self._key_type, self._problem
        return (self.kind, self.name, *types, self.ttl, self.definition, self.accumulators)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StateDescriptor):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self.kind, self.name))

    def __repr__(self) -> str:
        types = [str(t) for t in (self._key_type, self._type) if t is not None]
        return f"{type(self).__name__}({self.name!r}, {', '.join(types)})"


class ValueStateDescriptor(StateDescriptor, Generic[T]):
    """One value per key.

    Args:
        name: Name of the state.
        type: Type of the value: a type from `Types`, a Python type or a DDL string.
        **options: Options for state stored with another type, see `StateDescriptor`.
    """

    kind = "value"


class ListStateDescriptor(StateDescriptor, Generic[T]):
    """A list per key, stored per element.

    Args:
        name: Name of the state.
        type: Type of the elements.
        **options: Options for state stored with another type, see `StateDescriptor`.
    """

    kind = "list"


class MapStateDescriptor(StateDescriptor, Generic[K, V]):
    """A map per key, stored per entry.

    Args:
        name: Name of the state.
        key_type: Type of the map's keys.
        value_type: Type of the map's values.
        **options: Options for state stored with another type, see `StateDescriptor`.
    """

    kind = "map"

    def __init__(
        self, name: str, key_type: Any, value_type: Any, **options: Unpack[EvolutionOptions]
    ) -> None:
        self._declare(options, name, value_type, key_type)


class TimeOrderedStateDescriptor(StateDescriptor):
    """A map per key from times to values, which the store sorts by time; for Turnback's own use."""

    kind = "waiting"

    def __init__(self, name: str, type: Any, **options: Unpack[EvolutionOptions]) -> None:
        self._declare(options, name, type, "bigint")


class ReducingStateDescriptor(StateDescriptor, Generic[T]):
    """One value per key, into which every added element is reduced.

    Args:
        name: Name of the state.
        reduce_function: A `ReduceFunction`, or a callable of two values.
        type: Type of the value.
        **options: Options for state stored with another type, see `StateDescriptor`.
    """

    kind = "reducing"
    reduce_function: Any

    def __init__(
        self, name: str, reduce_function: Any, type: Any, **options: Unpack[EvolutionOptions]
    ) -> None:
        super().__init__(name, type, **options)
        if not callable(getattr(reduce_function, "reduce", reduce_function)):
            raise StateError(
                f"state {name!r}: expected a ReduceFunction or a callable of two values, "
                f"got {reduce_function!r}"
            )
        vars(self)["reduce_function"] = reduce_function


class AggregatingStateDescriptor(StateDescriptor, Generic[T, A, R]):
    """One accumulator per key, to which every added element is aggregated.

    Args:
        name: Name of the state.
        aggregate_function: An `AggregateFunction`.
        accumulator_type: Type of its accumulator, which is the stored value.
        **options: Options for state stored with another type, see `StateDescriptor`.
    """

    kind = "aggregating"
    aggregate_function: Any

    def __init__(
        self,
        name: str,
        aggregate_function: Any,
        accumulator_type: Any,
        **options: Unpack[EvolutionOptions],
    ) -> None:
        super().__init__(name, accumulator_type, **options)
        missing = [
            m
            for m in ("create_accumulator", "add", "get_result")
            if not callable(getattr(aggregate_function, m, None))
        ]
        if missing:
            raise StateError(
                f"state {name!r}: expected an AggregateFunction, got {aggregate_function!r} "
                f"without {', '.join(missing)}"
            )
        vars(self)["aggregate_function"] = aggregate_function


def _resolve(
    what: str, value: Any, *key: Any
) -> tuple[tuple[TypeInfo | None, TypeInfo | None], str | None]:
    """The types of a value and of a map's key, or why there are none."""
    try:
        value_type = as_type(value)
        key_type = as_type(key[0]) if key else None
        whole = value_type if key_type is None else MapTypeInfo(key_type, value_type)
        Serializer(whole)
    except UnsupportedTypeError as e:
        return (None, None), f"{what}: {e}"
    return (value_type, key_type), None


def _checked_aliases(
    state: str, aliases: Mapping[str, str] | None, type_: TypeInfo | None
) -> tuple[tuple[str, str], ...]:
    """The aliases, if each gives one field of the type one name that no other field has."""
    if not isinstance(aliases, Mapping | None):
        raise StateError(f"{state}: aliases maps new field names to old ones, got {aliases!r}")
    # Without a type there is nothing to check against; check() raises why there is none.
    pairs = tuple((aliases or {}).items())
    rows = {} if type_ is None else _rows_by_path(type_)
    taken: set[tuple[str, str]] = set()
    for path, old in pairs if type_ is not None else ():
        prefix, row = _row_of(state, path, rows)
        if not isinstance(old, str) or not old:
            raise StateError(f"{state}: the old name of {path!r} must be text, got {old!r}")
        if old in row.names:
            raise StateError(
                f"{state}: {path!r} cannot be read from {old!r}, which is itself a field of the "
                "same row; remove the alias, or use migrate="
            )
        if (prefix, old) in taken:
            raise StateError(f"{state}: two fields have the alias {old!r}; keep one of them")
        taken.add((prefix, old))
    return pairs


def _row_of(state: str, path: Any, rows: _Rows) -> tuple[str, RowTypeInfo]:
    matches = rows.get(path, [])
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise StateError(
            f"{state}: the alias path {path!r} can be read in two ways, because a field has "
            f"a dot in its name; use migrate="
        )
    near = get_close_matches(str(path), rows, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"its fields: {', '.join(rows) or 'none'}"
    raise StateError(
        f"{state}: aliases={{new name: old name}} contains {path!r}, which is not a field of its "
        f"type; {hint}"
    )


def _rows_by_path(type_: TypeInfo, prefix: str = "") -> _Rows:
    """The row that each field path leads to; several where names have dots in them."""
    if isinstance(type_, ListTypeInfo):
        return _rows_by_path(type_.element, prefix)
    if isinstance(type_, MapTypeInfo):
        return _rows_by_path(type_.value, prefix)
    by_path: _Rows = {}
    if isinstance(type_, RowTypeInfo):
        for name, inner in zip(type_.names, type_.types, strict=True):
            by_path.setdefault(prefix + name, []).append((prefix, type_))
            for path, rows in _rows_by_path(inner, f"{prefix}{name}.").items():
                by_path.setdefault(path, []).extend(rows)
    return by_path


def _check_migrate(
    state: str, rules: EvolutionRules, has_old_type: bool, type_: TypeInfo | None
) -> None:
    """Refuse a migration that could not be carried out."""
    migrate = rules.migrate
    if migrate is None:
        if has_old_type:
            raise StateError(f"{state}: migrate_from= is the type that migrate= accepts; give both")
        return
    if not callable(migrate) or not _takes_one(migrate):
        raise StateError(f"{state}: migrate must be a callable of one value, got {migrate!r}")
    if rules.aliases:
        raise StateError(
            f"{state}: migrate= replaces all other rules, aliases= too; drop one of them"
        )
    if rules.migrate_from is not None and rules.migrate_from == type_:
        raise StateError(
            f"{state}: migrate_from is the same type as the current one, so old values cannot be "
            "distinguished from new ones; give the state a new name if the meaning of its "
            "values changes, or omit migrate_from if only the kind of state changed"
        )


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:
        pass  # a builtin without a signature
    return True
