"""What a start matches with the program, and when it does so again."""

from types import SimpleNamespace
from typing import Any

from turnback.driver.restore_plan import RestorePlanner


def test_a_checkpoint_that_has_become_the_jobs_own_is_matched_again() -> None:
    """Another driver may create the job between the check of a start and the start."""
    planner: Any = object.__new__(RestorePlanner)
    snapshot = SimpleNamespace(
        checkpoint_in=lambda storage: None, own_checkpoint=lambda storage, job_id: "manifest"
    )
    checked = SimpleNamespace(snapshot=snapshot, own=None)
    planner._storage = None
    planner._checked = checked
    planner.match = lambda snapshot, job_id, *, known: "matched again"
    assert planner._match_once(snapshot, "id") == "matched again"
    checked.own = "manifest"
    assert planner._match_once(snapshot, "id") is checked
