"""Time to live of state: how long values stay after their last update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, TypeVar

from turnback.core.errors import StateError
from turnback.functions.event_time import Duration, as_milliseconds

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
    """When values that have expired are removed; those that are read always are.

    Attributes:
        chosen: What was asked for.
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
    """How long values of a state live, given to `StateDescriptor.enable_time_to_live`.

    A value, each element of a list and each entry of a map has a life of its own. It has expired
    when its last update was `ttl` ago or longer, by the clock of the driver at the beginning of the
    epoch. What has expired is removed when it is read, when state files are merged, and little by
    little from local stores. Made by `new_builder`.
    """

    class UpdateType(Enum):
        """What counts as an update, after which a value lives for the whole time again."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether a value that has expired is returned as long as nothing has removed it."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        """Which clock decides: that of the driver, at the beginning of the epoch."""

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
        """Begin with how long values live: a `Time`, a `Duration` or a `timedelta`."""
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
    """Makes a `StateTtlConfig`; all its methods but `build` return the builder itself."""

    def __init__(self, ttl: Any) -> None:
        self._ttl = _length(ttl)
        self._update_type = StateTtlConfig.UpdateType.OnCreateAndWrite
        self._visibility = StateTtlConfig.StateVisibility.NeverReturnExpired
        self._characteristic = StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
        self._strategies: dict[CleanupStrategyName, CleanupStrategy] = {}
        self._in_background = True

    def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfigBuilder:
        """Say what counts as an update."""
        self._update_type = _member("set_update_type", update_type, StateTtlConfig.UpdateType)
        return self

    def update_ttl_on_create_and_write(self) -> StateTtlConfigBuilder:
        """Count from the last write; this is the default."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> StateTtlConfigBuilder:
        """Count from the last write or read; so every read is a write to the state files."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

    def set_state_visibility(
        self, state_visibility: StateTtlConfig.StateVisibility
    ) -> StateTtlConfigBuilder:
        """Say whether values that have expired are returned."""
        self._visibility = _member(
            "set_state_visibility", state_visibility, StateTtlConfig.StateVisibility
        )
        return self

    def return_expired_if_not_cleaned_up(self) -> StateTtlConfigBuilder:
        """Return a value that has expired, once, if nothing has removed it yet."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

    def never_return_expired(self) -> StateTtlConfigBuilder:
        """Return no value that has expired; this is the default."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

    def set_ttl_time_characteristic(
        self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
    ) -> StateTtlConfigBuilder:
        """Say which clock decides; as in Flink there is one, processing time."""
        self._characteristic = _member(
            "set_ttl_time_characteristic",
            ttl_time_characteristic,
            StateTtlConfig.TtlTimeCharacteristic,
        )
        return self

    def use_processing_time(self) -> StateTtlConfigBuilder:
        """Go by processing time; this is the default."""
        return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

    def cleanup_full_snapshot(self) -> StateTtlConfigBuilder:
        """Leave out of savepoints what has expired; the job's own state keeps it."""
        self._strategies[CleanupStrategyName.FULL_STATE_SCAN_SNAPSHOT] = EmptyCleanupStrategy()
        return self

    def cleanup_incrementally(
        self, cleanup_size: int, run_cleanup_for_every_record: bool
    ) -> StateTtlConfigBuilder:
        """Let local stores look at `cleanup_size` entries for every entry that is written.

        Args:
            cleanup_size: How many; 5 by default.
            run_cleanup_for_every_record: Has no meaning here, as stores are written per epoch.
        """
        self._strategies[CleanupStrategyName.INCREMENTAL_CLEANUP] = IncrementalCleanupStrategy(
            _count("cleanup_incrementally", cleanup_size), bool(run_cleanup_for_every_record)
        )
        return self

    def cleanup_in_rocksdb_compact_filter(
        self, query_time_after_num_entries: int, periodic_compaction_time: Any = None
    ) -> StateTtlConfigBuilder:
        """Remove what has expired when state files are merged, whatever the backend.

        Neither argument has a meaning here: a merge looks at the clock once, and how often files
        are merged depends on their sizes.
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
        """Remove only what is read, and by the strategies that were chosen by their methods."""
        self._in_background = False
        return self

    def set_ttl(self, ttl: Any) -> StateTtlConfigBuilder:
        """Say how long values live."""
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
