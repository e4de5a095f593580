from __future__ import annotations

import pickle
from datetime import timedelta

import pytest

from turnback import Duration, StateTtlConfig, Time, ValueStateDescriptor
from turnback.errors import PlanError, StateError
from turnback.state.schema import StateTtl

HOUR = StateTtlConfig.new_builder(Time.hours(1))


def stored(builder):
    return StateTtl.of(builder.build())


def test_the_defaults_are_flinks():
    config = StateTtlConfig.new_builder(Time.seconds(2)).build()
    assert config.get_ttl() == Duration.of_seconds(2)
    assert config.get_update_type() is StateTtlConfig.UpdateType.OnCreateAndWrite
    assert config.get_state_visibility() is StateTtlConfig.StateVisibility.NeverReturnExpired
    clock = StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
    assert config.get_ttl_time_characteristic() is clock
    assert config.is_enabled()
    cleanup = config.get_cleanup_strategies()
    assert isinstance(cleanup, StateTtlConfig.CleanupStrategies)
    assert cleanup.is_cleanup_in_background()
    assert not cleanup.in_full_snapshot()
    assert cleanup.get_incremental_cleanup_strategy().get_cleanup_size() == 5
    assert not cleanup.get_incremental_cleanup_strategy().run_cleanup_for_every_record()
    filtered = cleanup.get_rocksdb_compact_filter_cleanup_strategy()
    assert filtered.get_query_time_after_num_entries() == 1000
    assert filtered.get_periodic_compaction_time() == Duration.of_days(30)
    assert StateTtl.of(config) == StateTtl(ms=2_000, swept=5)


def test_every_option_reaches_the_stored_form():
    new = StateTtlConfig.new_builder
    builder = new(timedelta(minutes=1)).update_ttl_on_read_and_write()
    builder = builder.return_expired_if_not_cleaned_up().use_processing_time()
    builder = builder.cleanup_full_snapshot().cleanup_incrementally(7, True)
    builder = builder.cleanup_in_rocksdb_compact_filter(10, Duration.of_days(1))
    assert stored(builder) == StateTtl(
        ms=60_000, on_read=True, shows_expired=True, merged=True, swept=7, saved=False
    )
    config = builder.build()
    assert pickle.loads(pickle.dumps(config)) == config
    assert stored(builder.never_return_expired().update_ttl_on_create_and_write()) == StateTtl(
        ms=60_000, merged=True, swept=7, saved=False
    )
    assert stored(builder.set_ttl(Time.days(2))).ms == 2 * 86_400_000


def test_without_a_background_only_what_was_chosen_is_done():
    off = StateTtlConfig.new_builder(Time.hours(1)).disable_cleanup_in_background()
    assert stored(off) == StateTtl(ms=3_600_000, merged=False, swept=0)
    assert stored(off.cleanup_incrementally(2, False)).swept == 2
    assert not stored(off).merged
    assert stored(off.cleanup_in_rocksdb_compact_filter(5)).merged
    strategies = off.build().get_cleanup_strategies()
    assert {s.name for s in strategies.chosen} == {
        "INCREMENTAL_CLEANUP",
        "ROCKSDB_COMPACTION_FILTER",
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: StateTtlConfig.new_builder(5), "the time to live must be a Duration, a Time"),
        (lambda: StateTtlConfig.new_builder(Time.hours(0)), "must be 1 ms or more, got 0 ms"),
        (lambda: HOUR.set_ttl(None), "the time to live must be a Duration"),
        (lambda: HOUR.cleanup_incrementally(0, False), "cleanup_incrementally takes a number of 1"),
        (lambda: HOUR.cleanup_incrementally(True, False), "takes a number of 1 or more, got True"),
        (lambda: HOUR.cleanup_in_rocksdb_compact_filter("9"), "compact_filter takes a number of 1"),
        (lambda: HOUR.cleanup_in_rocksdb_compact_filter(9, 30), "periodic_compaction_time must be"),
        (
            lambda: HOUR.set_update_type("OnReadAndWrite"),
            "set_update_type takes one of UpdateType.Disabled, UpdateType.OnCreateAndWrite, .*got",
        ),
        (lambda: HOUR.set_state_visibility(1), "one of StateVisibility.ReturnExpiredIfNotCleaned"),
        (
            lambda: HOUR.set_ttl_time_characteristic(0),
            "one of TtlTimeCharacteristic.Pro",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, message):
    with pytest.raises((StateError, PlanError), match=message):
        wrong()


def test_a_descriptor_takes_it_in_place_as_in_pyflink():
    descriptor = ValueStateDescriptor("seen", bool)
    plain = ValueStateDescriptor("seen", bool)
    assert descriptor.ttl is None
    assert descriptor.enable_time_to_live(HOUR.build()) is descriptor
    assert descriptor.ttl == HOUR.build()
    assert descriptor != plain
    assert descriptor == ValueStateDescriptor("seen", bool).enable_time_to_live(HOUR.build())
    disabled = StateTtlConfig.new_builder(Time.hours(1))
    disabled = disabled.set_update_type(StateTtlConfig.UpdateType.Disabled)
    assert not disabled.build().is_enabled()
    assert descriptor.enable_time_to_live(disabled.build()) == plain
    with pytest.raises(StateError, match=r"state 'seen': enable_time_to_live takes a StateTtlConf"):
        descriptor.enable_time_to_live(Time.hours(1))
    with pytest.raises(AttributeError, match="immutable"):
        descriptor.ttl = None
