"""One case of each matrix in tests/engine, on real Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from engine import test_aggregations as aggregations
from engine import test_evolution as evolution
from engine import test_golden as golden
from engine import test_keyed_state as keyed_state
from engine import test_restores as restores
from engine import test_savepoints as savepoints
from engine import test_ttl as ttl
from engine.test_changes import test_rescaled_twice_with_the_backend_changed_in_between
from engine.test_checkpoints import test_any_of_them_can_be_started_from
from engine.test_closing import test_every_function_that_was_opened_is_closed
from engine.test_connect import test_two_kinds_of_files_are_connected
from engine.test_damage import counted_once, test_files_that_are_missing_or_swapped
from engine.test_dead_letters import (
    hurt,
    test_each_of_them_once_however_often_it_fails,
    test_they_are_fed_back_from_what_a_sink_has_written,
)
from engine.test_evolution import before
from engine.test_joins import test_clicks_and_views_of_files
from engine.test_keyed_batches import test_two_key_columns_over_several_epochs
from engine.test_levels import test_several_sources_and_parallelism_of_single_operators
from engine.test_local_caches import (
    local,
    test_a_copy_of_a_running_job_on_its_machine_disturbs_neither,
)
from engine.test_losing_tasks import (
    test_a_replayed_epoch_does_not_wait_for_locks_of_its_first_run,
)
from engine.test_operator_state import test_buffered_elements_survive_a_rescale
from engine.test_recipes import test_enrichment
from engine.test_restarts import fed, test_the_job_goes_on_from_the_last_checkpoint
from engine.test_restores import saved
from engine.test_sources import (
    test_a_bounded_job_goes_on_with_new_files_only,
    test_a_list_is_read_once_and_goes_on_where_it_was,
    test_an_epoch_reads_files_up_to_a_size,
    test_an_unbounded_job_takes_files_as_they_come,
)
from engine.test_streams import test_map_batches, test_types_of_what_comes_out
from engine.test_timers import (
    test_a_timer_by_the_clock_and_a_drain,
    test_files_in_epochs_of_any_size,
)
from engine.test_upgrades import test_an_upgrade_that_fails_once_is_matched_again
from engine.test_window_aggregations import test_over_files_in_several_epochs
from job_support import Jobs, counted
from turnback import Savepoint, SavepointWriter, diff
from turnback.config.checkpointing import SavepointFormat
from turnback.errors import StateError

__all__ = [
    "before",
    "counted_once",
    "fed",
    "hurt",
    "local",
    "saved",
    "test_a_bounded_job_goes_on_with_new_files_only",
    "test_a_copy_of_a_running_job_on_its_machine_disturbs_neither",
    "test_a_list_is_read_once_and_goes_on_where_it_was",
    "test_a_replayed_epoch_does_not_wait_for_locks_of_its_first_run",
    "test_a_timer_by_the_clock_and_a_drain",
    "test_an_epoch_reads_files_up_to_a_size",
    "test_an_unbounded_job_takes_files_as_they_come",
    "test_an_upgrade_that_fails_once_is_matched_again",
    "test_any_of_them_can_be_started_from",
    "test_buffered_elements_survive_a_rescale",
    "test_clicks_and_views_of_files",
    "test_each_of_them_once_however_often_it_fails",
    "test_enrichment",
    "test_every_function_that_was_opened_is_closed",
    "test_files_in_epochs_of_any_size",
    "test_files_that_are_missing_or_swapped",
    "test_map_batches",
    "test_over_files_in_several_epochs",
    "test_rescaled_twice_with_the_backend_changed_in_between",
    "test_several_sources_and_parallelism_of_single_operators",
    "test_the_job_goes_on_from_the_last_checkpoint",
    "test_they_are_fed_back_from_what_a_sink_has_written",
    "test_two_key_columns_over_several_epochs",
    "test_two_kinds_of_files_are_connected",
    "test_types_of_what_comes_out",
]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_every_kind_of_state(jobs: Jobs, backend: str) -> None:
    keyed_state.test_every_kind_of_state_over_several_epochs(jobs, backend)


def test_odd_keys(jobs: Jobs) -> None:
    """Spark's hash of columns and Python's agree in all types of keys."""
    keyed_state.test_odd_keys_are_told_apart_and_found_again(jobs, "rocksdb")


def test_a_declared_aggregation(jobs: Jobs) -> None:
    aggregations.test_two_key_columns_over_several_epochs(jobs)


def test_a_golden_savepoint(jobs: Jobs, tmp_path: Path) -> None:
    golden.test_it_goes_on_as_if_it_had_never_stopped(jobs, golden.GOLDEN[-1], tmp_path)


def test_a_restore_with_more_parallelism(jobs: Jobs, saved: Path) -> None:
    restores.test_the_output_is_that_of_a_run_without_a_stop(jobs, saved, "more parallelism")


def test_a_migration(jobs: Jobs, before: Path) -> None:
    evolution.test_state_evolves(jobs, before, evolution.InOpen, "savepoint")


def test_a_native_savepoint(jobs: Jobs) -> None:
    savepoints.test_one_is_taken_while_the_job_runs_and_many_jobs_start_from_it(
        jobs, SavepointFormat.NATIVE
    )


def test_it_can_be_copied_anywhere_and_read_by_anything(jobs: Jobs, tmp_path: Path) -> None:
    savepoints.feed(jobs)
    client = jobs.start(savepoints.build(jobs))
    savepoints.settled(jobs, savepoints.KEYS)
    client.stop_with_savepoint(savepoint_directory=jobs.directory / "sp").result(60)
    client.result(60)
    there = tmp_path / "somewhere else" / "sp"
    shutil.copytree(jobs.directory / "sp", there)
    shutil.rmtree(jobs.directory / "sp")
    frame = jobs.spark.read.parquet(str(there / "state" / "count" / "count"))
    assert sorted((r.key, r.value) for r in frame.collect()) == [("a", 3), ("b", 2), ("c", 1)]
    assert sorted(pd.read_parquet(there / "state" / "count" / "count")["value"]) == [1, 2, 3]
    where = there / "state" / "count" / "count" / "*.parquet"
    found = duckdb.sql(f"SELECT key, value FROM '{where}' ORDER BY key").fetchall()
    assert found == [("a", 3), ("b", 2), ("c", 1)]
    assert json.loads((there / "_metadata.json").read_text())["savepoint"]["job"] == "job"
    savepoints.feed(jobs)
    shutil.rmtree(jobs.root)
    savepoints.build(jobs).execute("job", bounded=True, start_from=there / "_metadata.json")
    assert jobs.out() == counted(savepoints.KEYS * 2)


def test_a_time_to_live_switched_on_and_its_table(jobs: Jobs) -> None:
    ttl.test_a_program_with_another_time_to_live_goes_on(jobs, "switched on", False)
    before = Savepoint.load(jobs.directory / "saved-job", jobs.spark)
    after = Savepoint.load(jobs.directory / "again", jobs.spark)
    table = after.state("count", "count")
    assert table.columns == ["key_group", "key", "value", "updated_at"]
    assert table.where("updated_at > current_timestamp() - interval 1 hour").count() == 4
    (count,) = diff(before, after).summary()
    assert (count.changed, count.note) == (4, "values are kept for 1 d, previously for ever")
    writer = SavepointWriter.from_existing(after)
    with pytest.raises(StateError, match="there is no column 'updated_at'"):
        writer.transform_state("count", "count", lambda rows: rows.drop("updated_at"))
    writer.transform_state("count", "count", lambda rows: rows.where("key = 'a'"))
    written = writer.write(jobs.directory / "written").state("count", "count")
    kept = table.where("key = 'a'")
    assert written.collect() == kept.collect()
