"""Some of the kills with a JVM and real workers: what they show does not depend on the engine."""

import pytest

from crash import test_driver_killed, test_two_drivers
from crash.conftest import MakePlace

pytestmark = pytest.mark.timeout(900)


def test_fault_1_in_a_worker(on_spark: MakePlace) -> None:
    test_driver_killed.test_fault_1_before_all_state_files_are_durable(on_spark)


@pytest.mark.exhaustive
def test_fault_3_in_the_driver(on_spark: MakePlace) -> None:
    test_driver_killed.test_fault_3_after_the_manifest_before_the_sink_commit(on_spark)


@pytest.mark.exhaustive
def test_fault_18_a_zombie_wakes_after_it_was_replaced(on_spark: MakePlace) -> None:
    test_two_drivers.test_fault_18_and_19_a_zombie_wakes_after_it_was_replaced(
        on_spark, "before-manifest:2"
    )
