from __future__ import annotations

import pytest

from turnback.state.files import Merge, StateFile, in_order, plan_merges

KB = 1 << 10


def file(first, last, size, complete=False, groups=(0, 9)):
    path = f"{first}-{last}-{groups[0]}"
    return StateFile(path, size, "", 1, first, last, *groups, ("op",), complete)


def merged(merge, shrink):
    """What a merge would leave, if it shrank its input to this part, but not below one file."""
    files = merge.files
    size = max(max(f.length for f in files), int(sum(f.length for f in files) * shrink))
    return file(min(f.first_epoch for f in files), files[-1].last_epoch, size, merge.final)


def test_few_files_are_left_alone():
    assert plan_merges([]) == []
    assert plan_merges([file(e, e, KB) for e in range(7)]) == []


def test_the_first_files_become_the_base():
    files = [file(e, e, KB) for e in range(8)]
    assert plan_merges(files) == [Merge(tuple(files), True)]


def test_order_of_the_list_does_not_matter():
    files = [file(e, e, KB) for e in range(8)]
    assert plan_merges(files[::-1]) == plan_merges(files)


def test_the_base_is_folded_only_when_outgrown():
    base = file(0, 9, 1000 * KB, complete=True)
    small = [file(e, e, 60 * KB) for e in range(10, 18)]
    large = [file(e, e, 63 * KB) for e in range(10, 18)]
    assert plan_merges([base, *small]) == [Merge(tuple(small), False)]
    assert plan_merges([base, *large]) == [Merge((base, *large), True)]


def test_a_large_file_is_not_rewritten_for_a_few_small_ones():
    base = file(0, 9, 10**9, complete=True)
    large, small = file(10, 17, 10**7), [file(e, e, KB) for e in range(18, 25)]
    assert plan_merges([base, large, *small]) == []
    more = [*small, file(25, 25, KB)]
    assert plan_merges([base, large, *more]) == [Merge(tuple(more), False)]


def test_files_of_one_epoch_are_never_torn_apart():
    base = file(0, 9, 10**9, complete=True)
    files = [f for e in range(10, 18) for f in (file(e, e, KB), file(e, e, KB, groups=(10, 19)))]
    (plan,) = plan_merges([base, *files])
    assert set(plan.files) == set(files)


@pytest.mark.parametrize("shrink", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("sizes", [[20 * KB], [KB, 5000 * KB], [KB] * 30 + [40_000 * KB]])
def test_files_stay_few_and_rewriting_is_logarithmic(shrink, sizes):
    files, written, rewritten, most = [], 0, 0, 0
    for epoch in range(3000):
        new = file(epoch, epoch, sizes[epoch % len(sizes)])
        written += new.length
        files.append(new)
        for merge in plan_merges(files):
            position = in_order(files).index(merge.files[0])
            assert in_order(files)[position : position + len(merge.files)] == list(merge.files)
            assert not merge.final or len(merge.files) == len(files)
            result = merged(merge, shrink)
            rewritten += result.length
            files = [f for f in files if f not in merge.files] + [result]
        most = max(most, len(files))
    assert most <= 33
    assert rewritten <= 8 * written
