"""How programs are cut into levels and channels."""

from __future__ import annotations

import pickle

from local_engine import collected, environment, source
from turnback import KeyedProcessFunction, OutputTag, Time, WatermarkStrategy, count, sum_of
from turnback.functions import AggregateFunction
from turnback.plan.plan import InputId, Plan, Routing
from turnback.windows import TumblingEventTimeWindows

SCHEMA = "a string, n bigint"


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def names(plan: Plan) -> list[list[str]]:
    return [[op.uid for op in level.operators] for level in plan.levels]


def process(stream, uid, key="a"):
    return stream.key_by(key).process(Pass(), SCHEMA).uid(uid)


def test_spark_alone_feeds_a_keyed_first_level():
    env = environment(3)
    out = process(source(env, "s", SCHEMA), "p")
    collected(out.map(lambda r: r, SCHEMA).uid("m"), "out")
    plan = env.plan()
    assert plan.native
    assert names(plan) == [["p", "m", "out"]]
    (level,) = plan.levels
    assert level.parallelism == 3
    (channel,) = plan.channels
    assert (channel.first_level, channel.last_level, channel.reader) == (-1, 0, "p")
    assert channel.routing(0) is Routing.KEY_COLUMNS
    assert [op.parallelism for op in level.operators] == [3, 3, 3]


def test_a_source_with_anything_else_to_do_runs_in_python():
    def is_native(build) -> bool:
        env = environment()
        stream = source(env, "s", SCHEMA)
        build(stream)
        return env.plan().native

    assert is_native(lambda s: collected(process(s, "p"), "o"))
    assert not is_native(lambda s: (collected(process(s, "p"), "o"), collected(s, "raw")))
    assert not is_native(
        lambda s: (collected(process(s, "p"), "o"), collected(process(s, "q", "n"), "o2"))
    )
    by_function = {"key_type": str}
    assert not is_native(
        lambda s: collected(s.key_by(lambda r: r.a, **by_function).process(Pass(), SCHEMA), "o")
    )
    assert not is_native(lambda s: collected(process(s.filter(bool), "p"), "o"))
    assert not is_native(lambda s: collected(s.map(lambda r: r, SCHEMA).set_parallelism(2), "o"))


def test_readers_of_one_key_share_a_channel():
    env = environment()
    stream = source(env, "s", SCHEMA)
    for uid in ("p", "q"):
        collected(process(stream, uid), f"{uid} out")
    collected(process(stream, "other", "n"), "other out")
    collected(process(stream, "wide").set_parallelism(4), "wide out")
    plan = env.plan()
    by_id = {op.id: op.uid for op in plan.operators()}
    shared = {tuple(by_id[c.operator] for c in w.consumers): w.parallelism for w in plan.channels}
    assert shared == {("p", "q"): 2, ("other",): 2, ("wide",): 4}


def test_a_level_is_the_greatest_of_its_inputs_plus_one_per_exchange():
    """a diamond, one edge of which skips a level"""
    env = environment()
    stream = source(env, "s", SCHEMA)
    one = process(stream, "one")
    two = process(one, "two", "n")
    joined = process(two.union(stream, one), "joined")
    collected(joined, "out")
    collected(stream, "raw")
    plan = env.plan()
    assert names(plan) == [["s", "raw"], ["one"], ["two"], ["joined", "out"]]
    by_id = {op.id: op.uid for op in plan.operators()}
    spans = {
        (by_id[w.producer], by_id[w.consumers[0].operator]): (w.first_level, w.last_level)
        for w in plan.channels
    }
    assert spans == {
        ("s", "one"): (0, 1),
        ("one", "two"): (1, 2),
        ("two", "joined"): (2, 3),
        ("s", "joined"): (0, 3),
        ("one", "joined"): (1, 3),
    }
    long = next(w for w in plan.channels if (w.first_level, w.last_level) == (0, 3))
    assert [long.routing(level) for level in (1, 2, 3)] == [
        Routing.TRANSIT,
        Routing.TRANSIT,
        Routing.KEY_COLUMNS,
    ]
    assert long.id in plan.levels[0].outputs
    assert long.id in plan.levels[1].outputs
    assert long.id not in plan.levels[3].outputs


def test_parallelism_of_its_own_means_a_shuffle_unless_it_is_the_same():
    env = environment(2)
    stream = process(source(env, "s", SCHEMA), "p")
    same = stream.map(lambda r: r, SCHEMA).uid("same").set_parallelism(2)
    wide = stream.map(lambda r: r, SCHEMA).uid("wide").set_parallelism(3)
    collected(same, "same out")
    collected(wide, "wide out")
    single = stream.sink_to(collected(stream, "other"))
    single.uid("single").set_parallelism(1)
    plan = env.plan()
    assert names(plan) == [["p", "same", "same out", "other"], ["wide", "wide out", "single"]]
    assert plan.levels[1].parallelism == 3
    routes = {w.reader: (w.routing(1), w.parallelism) for w in plan.channels if w.first_level == 0}
    assert routes == {"wide": (Routing.REBALANCE, 3), "single": (Routing.REBALANCE, 1)}


def test_a_union_is_no_operator():
    env = environment()
    stream = source(env, "s", SCHEMA)
    collected(stream.union(stream).map(lambda r: r, SCHEMA).uid("m"), "out")
    plan = env.plan()
    assert names(plan) == [["s", "m", "out"]]
    (first, second, _) = plan.levels[0].operators
    assert first.consumers == (InputId(second.id), InputId(second.id))


def test_plans_can_be_pickled_without_their_sources():
    env = environment()
    collected(process(source(env, "s", SCHEMA), "p"), "out")
    plan = env.plan()
    levels = pickle.loads(pickle.dumps(plan.levels))
    assert [[op.uid for op in level.operators] for level in levels] == [["p", "out"]]
    assert plan.sources[0].uid == "s"


def test_only_columns_that_aggregates_need_are_read():
    def read(*also, keyed=lambda s: s.key_by("k")):
        env = environment()
        stream = source(env, "s", "k string, a bigint, b bigint, c bigint")
        collected(keyed(stream).aggregate(n=count(), total=sum_of("b")).uid("agg"), "out")
        for branch in also:
            collected(branch(stream), "other")
        plan = env.plan()
        operator = next(op for op in plan.operators() if op.uid == "s")
        assert operator.type == plan.sources[0].read
        return list(plan.sources[0].read.names)

    everything = ["k", "a", "b", "c"]
    assert read() == ["k", "b"]
    assert read(lambda s: s.key_by("a").aggregate(n=count()).uid("too")) == ["k", "a", "b"]
    assert read(lambda s: s.filter(bool)) == everything
    assert read(keyed=lambda s: s.key_by(lambda row: row.k, key_type=str)) == ["k", "b"]
    assert read(keyed=lambda s: s.key_by(lambda row: row[0], key_type=str)) == everything
    assert read(keyed=lambda s: s.union(s).key_by("k")) == everything
    assert read(keyed=lambda s: s.filter(bool).key_by("k")) == everything


def test_a_source_is_read_as_far_as_windows_need_it():
    wide = "a string, b string, n bigint, at bigint"
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    hourly = TumblingEventTimeWindows.of(Time.hours(1))

    def read(build) -> tuple[tuple[str, ...], tuple[str, ...]]:
        env = environment()
        stamped = source(env, "s", wide).assign_timestamps_and_watermarks(strategy).uid("time")
        build(stamped)
        plan = env.plan()
        (time,) = (op for op in plan.operators() if op.uid == "time")
        assert time.input_type == plan.sources[0].read
        return tuple(plan.sources[0].read.names), tuple(time.type.names)

    def windows(stream):
        return stream.key_by("a").window(hourly)

    class Total(AggregateFunction):
        def create_accumulator(self):
            return 0

        def add(self, value, accumulator):
            return accumulator + value.n

        def get_result(self, accumulator):
            return accumulator

        def merge(self, acc_a, acc_b):
            return acc_a + acc_b

    def total(stream):
        return stream.aggregate(Total(), None, int, int)

    everything = ("a", "b", "n", "at")
    late = OutputTag("late")
    assert read(lambda s: collected(windows(s).aggregate(n=count()), "o")) == (("a", "at"), ("a",))
    counted = read(lambda s: collected(windows(s).aggregate(n=sum_of("n")), "o"))
    assert counted == (("a", "n", "at"), ("a", "n"))
    assert read(lambda s: collected(total(windows(s)), "o")) == counted
    for build in (
        lambda s: (collected(windows(s).aggregate(n=count()), "o"), collected(s, "raw")),
        lambda s: collected(windows(s).reduce(lambda a, b: a), "o"),
        lambda s: collected(total(windows(s).side_output_late_data(late)), "o"),
        lambda s: collected(total(windows(s.union(s))), "o"),
    ):
        assert read(build) == (everything, everything)
