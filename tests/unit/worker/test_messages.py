"""Barriers, their alignment, and the rows in which they travel."""

from __future__ import annotations

import pyarrow as pa
import pytest

from local_engine import collected, environment, source
from turnback import KeyedProcessFunction
from turnback.driver.epochs import check_barriers
from turnback.errors import EpochConflictError
from turnback.plan.plan import Channel, InputId, Level
from turnback.values.columns import Batch
from turnback.values.hints import as_type
from turnback.worker.level import Router
from turnback.worker.message import (
    Barrier,
    TaskAck,
    TaskName,
    TaskSet,
    align,
    decode_barrier,
    encode_barrier,
)
from turnback.worker.program import RowLayout, level_programs

ROW = as_type("n bigint, N string, `a.b` date")
CHANNEL = Channel(3, 0, (InputId(1),), ROW, None, 2, 0, 1)
SCALAR = Channel(4, 0, (InputId(2),), as_type("string"), None, 3, 0, 1)


def barrier(partition, attempt=1, acks=()):
    return Barrier(0, TaskName(partition, attempt), tuple(acks))


class TestAlignment:
    @pytest.mark.parametrize("tasks", [2, None], ids=["number known", "number unknown"])
    def test_one_barrier_of_each_task(self, tasks):
        names = align([barrier(1), barrier(0)], tasks, "here")
        assert names == (TaskName(0, 1), TaskName(1, 1))

    @pytest.mark.parametrize("tasks", [0, None])
    def test_no_tasks_at_all(self, tasks):
        assert align([], tasks, "here") == ()

    @pytest.mark.parametrize(
        ("barriers", "tasks"),
        [
            ([], 1),
            ([barrier(0)], 2),
            ([barrier(0), barrier(0, attempt=2), barrier(1)], 2),
            ([barrier(0), barrier(0, attempt=2)], 2),
            ([barrier(0), barrier(0, attempt=2), barrier(1)], None),
            ([barrier(0), barrier(1)], 1),
            ([barrier(0), barrier(2)], 2),
            ([barrier(0), barrier(2)], None),
            ([barrier(0)], 0),
        ],
    )
    def test_anything_else_is_refused(self, barriers, tasks):
        with pytest.raises(EpochConflictError, match="here"):
            align(barriers, tasks, "here")

    def test_an_acknowledgement_is_no_larger_if_there_are_more_tasks(self):
        few, many = (
            TaskAck(0, TaskName(0, 7), TaskSet.of(TaskName(n, n) for n in range(count)))
            for count in (100, 10_000)
        )
        assert len(encode_barrier(barrier(0, acks=[many]))) < 1.1 * len(
            encode_barrier(barrier(0, acks=[few]))
        )
        assert TaskSet.of([TaskName(0, 1)]) != TaskSet.of([TaskName(0, 2)])

    def test_barriers_survive_their_encoding(self):
        upstream = TaskSet.of([TaskName(1, 2)])
        ack = TaskAck(0, TaskName(0, 7), upstream, transactions={"s": (b"\0x",)})
        given = barrier(4, 9, [ack])
        assert decode_barrier(encode_barrier(given)) == given


class TestTheDriversCheck:
    def levels(self, n):
        return [Level(i, 2, (), ()) for i in range(n)]

    def run(self, barriers, levels):
        return check_barriers(barriers, self.levels(levels), 0)

    def ack(self, level, partition, attempt=1, upstream=()):
        return TaskAck(level, TaskName(partition, attempt), TaskSet.of(upstream))

    def test_all_tasks_of_all_levels(self):
        before = (TaskName(0, 1), TaskName(1, 1))
        first = [self.ack(0, p) for p in (0, 1)]
        second = [self.ack(1, p, upstream=before) for p in (0, 1)]
        acks = self.run(
            [barrier(0, acks=first[:1] + second[:1]),
             barrier(1, acks=[first[1], second[1]])], 2,
        )  # fmt: skip
        assert len(acks.acks) == 4

    def test_an_acknowledgement_of_another_attempt_than_was_read(self):
        acks = [self.ack(0, 0, attempt=1), self.ack(0, 1, attempt=2)]
        with pytest.raises(EpochConflictError, match="not those whose output was read"):
            self.run([barrier(0, acks=acks), barrier(1)], 1)

    def test_a_missing_acknowledgement(self):
        with pytest.raises(EpochConflictError, match="not those whose output was read"):
            self.run([barrier(0, acks=[self.ack(0, 0)]), barrier(1)], 1)

    def test_two_attempts_of_one_upstream_task_were_read(self):
        one, two = ((TaskName(0, a),) for a in (1, 2))
        acks = [
            self.ack(0, 0),
            self.ack(1, 0, upstream=one),
            self.ack(1, 1, upstream=two),
        ]
        with pytest.raises(EpochConflictError, match="different attempts of the previous level"):
            self.run([barrier(0, acks=acks), barrier(1)], 2)


class TestRowsOfAShuffle:
    layout = RowLayout((CHANNEL, SCALAR))

    def test_every_channel_finds_its_own_rows_again(self):
        rows = Batch(ROW, [(1, "x", None), (2, None, None)])
        values = Batch(SCALAR.type, ["a", None])
        packed = pa.Table.from_batches(
            [
                self.layout.pack(SCALAR.id, values, pa.array([0, 1], pa.int32())),
                self.layout.barriers([0, 1], [b"zero", b"one"]),
                self.layout.pack(CHANNEL.id, rows, None),
            ]
        )
        (whole,) = packed.combine_chunks().to_batches()
        parts, barriers = self.layout.unpack(whole)
        assert barriers == [b"zero", b"one"]
        found = {channel.id: elements.rows for channel, elements in parts}
        assert found == {3: [(1, "x", None), (2, None, None)], 4: ["a", None]}
        assert whole.column(0).to_pylist() == [0, 1, 0, 1, None, None]

    def test_only_barriers(self):
        assert self.layout.unpack(self.layout.barriers([0], [b"x"])) == ([], [b"x"])

    def test_names_are_unique_for_spark_and_need_no_quotes(self):
        names = [name for name, _ in self.layout.fields]
        assert len({name.lower() for name in names}) == len(names) == 4
        assert all(name.isidentifier() for name in names)
        assert self.layout.ddl().split(", ")[3:5] == [f"{names[0]} bigint", f"{names[1]} string"]

    def test_those_of_a_single_source_have_no_columns_but_its_own(self):
        bare = RowLayout((CHANNEL,), bare=True)
        packed = bare.pack(CHANNEL.id, Batch(ROW, [(1, "x", None), (2, None, None)]), None)
        assert packed.schema.names == [name for name, _ in bare.fields]
        (((channel, elements),), barriers) = bare.unpack(packed)
        assert (channel, elements.rows) == (CHANNEL, [(1, "x", None), (2, None, None)])
        assert barriers == []
        assert bare.unpack(packed.slice(0, 0)) == ([], [])


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class TestRoutes:
    def test_round_robin_goes_on_where_it_was(self):
        router = Router(SCALAR, 1, 7, 128)
        router.start(1)
        batch = Batch(SCALAR.type, ["x"] * 4)
        assert router.targets(batch).to_pylist() == [1, 2, 0, 1]
        assert router.targets(batch).to_pylist() == [2, 0, 1, 2]

    def test_transit_uses_every_task_of_the_next_level(self):
        far = Channel(0, 0, (InputId(1),), SCALAR.type, None, 2, 0, 2)
        router = Router(far, 1, 5, 128)
        router.start(0)
        assert router.targets(Batch(SCALAR.type, ["x"] * 6)).to_pylist() == [0, 1, 2, 3, 4, 0]

    def test_keys_of_columns_are_left_to_spark(self):
        env = environment(2)
        collected(source(env, "s", SCALAR.type).key_by("value").process(Pass(), "string"), "out")
        plan = env.plan()
        router = Router(plan.channels[0], 0, 2, 128)
        assert router.targets(Batch(SCALAR.type, ["x"])) is None

    def test_more_keys_than_are_remembered(self, monkeypatch):
        monkeypatch.setattr("turnback.worker.level._CACHED_KEYS", 3)
        env = environment(4)
        stream = source(env, "s", SCALAR.type)
        collected(stream.key_by(str, key_type=str).process(Pass(), "string"), "out")
        program = level_programs(env.plan())[0]
        router = Router(program.output.channels[0], 1, 4, 128)
        batch = Batch(SCALAR.type, list("abcdefgh"))
        first = router.targets(batch).to_pylist()
        assert router.targets(batch).to_pylist() == first
        assert len(set(first)) > 1
