"""Which epochs are in the past of a checkpoint, whatever the job was turned back to."""

from turnback.checkpoint.manifest import AttemptRange, RedriveProgress


def test_a_job_that_goes_on_has_all_it_has_done_in_its_past():
    first = RedriveProgress().begin(1, 0).advance(40, 0)
    second = first.begin(2, 40, continues=True).advance(70, 3)
    assert second == RedriveProgress(3, (AttemptRange(1, 2, 70),))
    assert second.has(1, 40)
    assert second.has(2, 70)
    assert not second.has(2, 71)
    assert not second.has(3, 1)


def test_what_came_after_the_point_it_was_turned_back_to_is_not():
    at_50 = RedriveProgress().begin(1, 0).advance(50, 1)
    turned = at_50.begin(4, 50).advance(120, 1)
    assert turned.has(1, 50)
    assert not turned.has(1, 51)  # it comes again
    assert not turned.has(3, 80)
    assert turned.has(4, 120)


def test_it_may_be_turned_back_to_a_future_that_was_given_up():
    at_100 = (
        RedriveProgress().begin(1, 0).advance(50, 0).begin(3, 50, continues=True).advance(100, 0)
    )
    turned = at_100.begin(6, 100)  # attempts 4 and 5 went on from 50
    assert turned.has(3, 80)
    assert not turned.has(4, 60)
    assert not turned.has(5, 100)
    assert turned.has(6, 100)


def test_a_snapshot_of_an_older_version_knows_nothing_of_its_past():
    begun = RedriveProgress().begin(7, 300, continues=True)
    assert begun == RedriveProgress(0, (AttemptRange(7, 7, 300),))
    assert not begun.has(6, 299)
