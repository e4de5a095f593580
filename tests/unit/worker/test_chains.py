"""Which files each partition reads, after rescaling and merging."""

from __future__ import annotations

from local_engine import collected, environment, source
from turnback import KeyedProcessFunction
from turnback.state.files import StateFile
from turnback.values.keys import group_range
from turnback.worker.program import StateFileIndex, level_programs

SCHEMA = "k string, n bigint"
GROUPS = 8


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def chains(parallelism: int, **operators: int | None) -> StateFileIndex:
    """A program of keyed operators in one level, each with a parallelism of its own."""
    env = environment(parallelism).set_max_parallelism(GROUPS)
    stream = source(env, "s", SCHEMA)
    for uid, own in (operators or {"p": None}).items():
        keyed = stream.key_by("k").process(Pass(), SCHEMA).uid(uid)
        collected(keyed if own is None else keyed.set_parallelism(own), f"{uid} out")
    return StateFileIndex(level_programs(env.plan()))


def file(path, epoch, groups=(0, 7), operators=("p",), complete=False, since=None):
    return StateFile(
        path=path, length=1, digest="", rows=1, first_epoch=epoch if since is None else since,
        last_epoch=epoch, first_group=groups[0], last_group=groups[1], operators=operators,
        complete=complete,
    )  # fmt: skip


def told(chain) -> list[tuple[str, int, int]]:
    return [(f.path, f.first_group, f.last_group) for f in chain]


def test_files_are_dealt_out_by_key_group():
    made = chains(2)
    made.restore([file("b", 2, (3, 4)), file("a", 1, (0, 7)), file("c", 3, (7, 7))])
    assert {p: told(c) for p, c in made.of_level(0).items()} == {
        0: [("a", 0, 3), ("b", 3, 3)],
        1: [("a", 4, 7), ("b", 4, 4), ("c", 7, 7)],
    }
    assert [(f.path, f.first_group, f.last_group) for f in made.live()] == [
        ("a", 0, 7), ("b", 3, 4), ("c", 7, 7),
    ]  # fmt: skip


def test_every_group_is_somewhere_exactly_once_whatever_the_parallelism():
    for parallelism in range(1, GROUPS + 1):
        made = chains(parallelism)
        made.restore([file("a", 1)])
        spans = [(f.first_group, f.last_group) for c in made.of_level(0).values() for f in c]
        assert sorted(spans) == [group_range(p, parallelism, GROUPS) for p in range(parallelism)]


def test_a_complete_file_hides_older_ones_in_its_groups_only():
    made = chains(1)
    made.restore(
        [file("old", 1), file("base", 5, (2, 5), complete=True, since=1), file("new", 6, (5, 6))]
    )
    assert told(made.of_level(0)[0]) == [
        ("old", 0, 1), ("old", 6, 7), ("base", 2, 5), ("new", 5, 6),
    ]  # fmt: skip


def test_a_complete_file_hides_older_ones_of_its_operators_only():
    made = chains(1, p=None, q=None)
    both = ("p", "q")
    made.restore([file("old", 1, operators=both), file("base", 2, complete=True)])
    parts = {f.path: f.operators for f in made.of_level(0)[0]}
    assert parts == {"old": ("q",), "base": ("p",)}


def test_what_nothing_claims_is_not_live():
    made = chains(2)
    made.restore([file("gone", 1, operators=("removed",)), file("kept", 1)])
    assert [f.path for f in made.live()] == ["kept"]


def test_an_operator_with_fewer_instances_than_its_level():
    made = chains(4, p=2, q=None)
    made.restore([file("a", 1, operators=("p", "q"))])
    shares = {
        partition: {f.operators: (f.first_group, f.last_group) for f in chain}
        for (_, partition), chain in made.items()
    }
    assert shares[0] == {("p",): (0, 3), ("q",): (0, 1)}
    assert shares[1] == {("p",): (4, 7), ("q",): (2, 3)}
    assert shares[3] == {("q",): (6, 7)}


def test_what_is_merged_away_is_given_back_when_no_partition_needs_it():
    made = chains(2)
    shared, own = file("shared", 1), file("own", 2, (0, 3))
    made.restore([shared])
    made.confirm(0, 0, own)
    first = made.of_level(0)[0]
    merged = file("merged", 2, (0, 3), complete=True, since=1)
    assert made.replace((0, 0), first, merged) == ["own"]  # partition 1 still reads "shared"
    assert told(made.of_level(0)[0]) == [("merged", 0, 3)]
    made.confirm(0, 0, file("later", 3, (1, 1)))
    assert [f.path for f in made.of_level(0)[0]] == ["merged", "later"]
    other = file("other", 2, (4, 7), complete=True, since=1)
    assert made.replace((0, 1), made.of_level(0)[1], other) == ["shared"]
    assert sorted(f.path for f in made.live()) == ["later", "merged", "other"]
    assert [home for home, _ in made.items()] == [(0, 0), (0, 1)]
