"""What users are told when their functions fail: operator, key, element, their own line."""

from __future__ import annotations

import pytest

from local_engine import LocalEngine, collected, environment, source
from turnback import (
    CollectSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    ProcessFunction,
    ValueStateDescriptor,
)
from turnback.errors import (
    ElementTypeError,
    NullKeyError,
    SinkError,
    StateError,
    UnsupportedTypeError,
    UserFunctionError,
)
from turnback.sinks import TwoPhaseCommitSink
from turnback.sinks.base import Sink, SinkWriter
from turnback.worker.message import EncodedError, decode_error, encode_error, user_error

SCHEMA = "k string, n bigint"
ROWS = [("a", 1), ("b", 0)]


def invert(row):
    return row.k, 1 // row.n  # the user's own line


class Invert(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield invert(value)


class Plain(ProcessFunction):
    def process_element(self, value, ctx):
        yield invert(value)


class BadOpen(MapFunction):
    def open(self, runtime_context):
        raise ConnectionError("no route to host")

    def map(self, value):
        return value


class Broken(Sink):
    """A sink without any error handling."""

    def __init__(self, where):
        self.where = where

    def writer(self, ctx):
        return BrokenWriter(self.where)

    def committer(self, ctx):
        return None


class BrokenWriter(SinkWriter):
    def __init__(self, where):
        self.where = where

    def write(self, batch):
        if self.where == "write":
            raise OSError("disk on fire")

    def prepare(self):
        raise OSError("disk on fire")

    def abort(self):
        raise OSError("and no abort either")


class BadPreCommit(TwoPhaseCommitSink):
    transaction_type = str

    def begin(self, ctx):
        return "t"

    def write(self, txn, element):
        pass

    def pre_commit(self, txn):
        raise OSError("disk on fire")

    def commit(self, txn):
        pass

    def abort(self, txn):
        raise OSError("and no abort either")


FAILING = {
    "map": lambda s: s.map(invert, SCHEMA),
    "flat_map": lambda s: s.flat_map(lambda r: [invert(r)], SCHEMA),
    "lazy flat_map": lambda s: s.flat_map(lambda r: (invert(x) for x in [r]), SCHEMA),
    "filter": lambda s: s.filter(invert),
    "process": lambda s: s.process(Plain(), SCHEMA),
    "keyed process": lambda s: s.key_by("k").process(Invert(), SCHEMA),
    "reduce": lambda s: s.union(s).key_by("k").reduce(lambda a, b: invert(a)),
}


def failure(tmp_path, build, rows=ROWS):
    env = environment(2)
    collected(build(source(env, "s", SCHEMA)).uid("it").name("mine"), "out")
    with pytest.raises(Exception) as caught:
        LocalEngine(env.plan(), tmp_path).epoch({"s": rows})
    return caught.value


@pytest.mark.parametrize("where", FAILING)
def test_a_function_that_raises(tmp_path, where):
    error = failure(tmp_path, FAILING[where])
    text = str(error)
    assert type(error) is UserFunctionError
    assert "operator 'it' (mine) failed: ZeroDivisionError: integer division" in text
    assert "element: Row(k='b', n=0)" in text
    assert f'File "{__file__}"' in text
    assert "1 // row.n  # the user's own line" in text
    assert ("key: 'b'" in text) == (where in ("keyed process", "reduce"))
    assert len(text.splitlines()) < 15


def exhausted(row):
    return next(iter([]))


class Exhausted(KeyedProcessFunction):
    def process_element(self, value, ctx):
        return exhausted(value)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda s: s.map(exhausted, SCHEMA), id="map"),
        pytest.param(lambda s: s.flat_map(exhausted, SCHEMA), id="flat_map"),
        pytest.param(lambda s: s.filter(exhausted), id="filter"),
        pytest.param(lambda s: s.key_by("k").process(Exhausted(), SCHEMA), id="keyed process"),
        pytest.param(
            lambda s: s.union(s).key_by("k").reduce(lambda a, b: exhausted(a)), id="reduce"
        ),
        pytest.param(
            lambda s: s.key_by(exhausted, key_type=int).process(Invert(), SCHEMA), id="key"
        ),
    ],
)
def test_a_function_that_exhausts_an_iterator_does_not_end_the_batch(tmp_path, build):
    error = failure(tmp_path, build)
    assert type(error) is UserFunctionError
    assert "StopIteration" in str(error)


def test_a_batch_function_that_raises(tmp_path):
    def bad(batch):
        yield batch
        raise ZeroDivisionError("late")

    error = failure(tmp_path, lambda s: s.map_batches(bad))
    assert type(error) is UserFunctionError
    assert "'it' (mine) failed: ZeroDivisionError: late" in str(error)
    assert "batch_of: '1 elements'" in str(error)


@pytest.mark.parametrize(
    ("give", "problem"),
    [
        (lambda b: b.rename_columns(["k", "m"]), r"got \['k', 'm'\], expected the columns"),
        (lambda b: [b, "text"], "got 'text'"),
        (lambda b: b.set_column(1, "n", b["k"]), "Failed to parse string: 'a'"),
    ],
)
def test_a_batch_function_that_gives_something_else(tmp_path, give, problem):
    error = failure(tmp_path, lambda s: s.map_batches(give))
    assert type(error) is ElementTypeError
    with pytest.raises(ElementTypeError, match=rf"operator 'it' \(mine\): map_batches.*{problem}"):
        raise error


def test_a_key_function_that_raises_names_who_wants_the_key(tmp_path):
    error = failure(
        tmp_path, lambda s: s.key_by(lambda r: invert(r)[0], key_type=str).process(Invert(), SCHEMA)
    )
    assert type(error) is UserFunctionError
    assert "operator 'it' (key function) failed: ZeroDivisionError" in str(error)
    assert "1 // row.n  # the user's own line" in str(error)


NULL_KEYS = {
    "column": (lambda s: s.key_by("k"), r"'it': the key \(k\) is null for an element; filter"),
    "columns": (lambda s: s.key_by("n", "k"), r"'it': the key \(n, k\) is null for an element"),
    "function": (
        lambda s: s.key_by(lambda r: r.k, key_type=str),
        "'it': the key returned by the key function is null for an element",
    ),
    "tuple": (
        lambda s: s.key_by(lambda r: (r.k, r.n), key_type=tuple[str, int]),
        r"'it': the key \(None, 1\) is or contains null",
    ),
    "scalar": (lambda s: s.map(lambda r: r.k, str).key_by("value"), r"'it': the key \(value\)"),
}


@pytest.mark.parametrize("where", NULL_KEYS)
def test_null_keys(tmp_path, where):
    key, message = NULL_KEYS[where]
    error = failure(tmp_path, lambda s: key(s).process(Pass(), "k string"), [(None, 1), ("a", 2)])
    assert type(error) is NullKeyError
    with pytest.raises(NullKeyError, match=message):
        raise error


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield ("x",)


@pytest.mark.parametrize(
    ("key", "key_type", "problem"),
    [
        (lambda r: r.k, int, "'a'"),
        (lambda r: r.n, str, "1"),
        (lambda r: [r.k], str, r"\['a'\]"),
        (lambda r: {r.k: 1}, tuple[str, int], "{'a': 1}"),
        (lambda r: 2**70, int, "1180591620717411303424"),
    ],
)
def test_keys_of_another_type(tmp_path, key, key_type, problem):
    error = failure(
        tmp_path, lambda s: s.key_by(key, key_type=key_type).process(Pass(), "k string")
    )
    assert isinstance(error, ElementTypeError)
    with pytest.raises(ElementTypeError, match=f"operator 'it': .*{problem}"):
        raise error


MISFITS = {
    "wrong type": (lambda r: (r.k, "one"), "'one'"),
    "too long": (lambda r: (r.k, r.n, 3), "it has 3 values instead of 2"),
    "no row": (lambda r: 5, "5"),
    "none": (lambda r: None, "None"),
    "dict": (lambda r: {"k": "a"}, "its keys must be exactly k, n"),
    "too large": (lambda r: (r.k, 2**63), "9223372036854775808"),
}


@pytest.mark.parametrize("where", ["sink", "next", "shuffle"])
@pytest.mark.parametrize("case", MISFITS)
def test_elements_that_do_not_fit_the_declared_type(tmp_path, where, case):
    give, problem = MISFITS[case]
    env = environment(2)
    mapped = source(env, "s", SCHEMA).map(give, SCHEMA).uid("it").name("mine")
    if where == "next":
        mapped = mapped.map(lambda r: (r.k, r.n), SCHEMA).uid("after")
        if case in ("wrong type", "too large"):
            mapped = mapped.key_by("k").reduce(max)  # no one looks before the shuffle
    elif where == "shuffle":
        mapped = mapped.key_by(lambda r: r.k, key_type=str).process(Invert(), SCHEMA)
    collected(mapped, "out")
    with pytest.raises(ElementTypeError, match=f"operator '(it' .mine|after).*{problem}"):
        LocalEngine(env.plan(), tmp_path).epoch({"s": ROWS})


def test_open_that_raises(tmp_path):
    error = failure(tmp_path, lambda s: s.map(BadOpen(), SCHEMA))
    assert type(error) is UserFunctionError
    assert "operator 'it' (mine) failed: ConnectionError: no route to host" in str(error)
    assert "where: 'open()'" in str(error)
    assert 'raise ConnectionError("no route to host")' in str(error)


@pytest.mark.parametrize("where", ["write", "prepare"])
def test_a_sink_that_raises(tmp_path, where):
    env = environment(1)
    source(env, "s", SCHEMA).sink_to(Broken(where)).uid("sink")
    with pytest.raises(UserFunctionError, match=r"operator 'sink' .*OSError: disk on fire"):
        LocalEngine(env.plan(), tmp_path).epoch({"s": ROWS})


def test_a_two_phase_sink_that_raises(tmp_path):
    env = environment(1)
    source(env, "s", SCHEMA).sink_to(BadPreCommit()).uid("sink")
    with pytest.raises(SinkError, match=r"sink 'sink' of job 'job'.*pre_commit failed: OSError"):
        LocalEngine(env.plan(), tmp_path).epoch({"s": ROWS})


def opening(get):
    class Opens(KeyedProcessFunction):
        def open(self, runtime_context):
            self.handle = get(runtime_context)

        def process_element(self, value, ctx):
            yield ("x",)

    return lambda s: s.key_by("k").process(Opens(), "k string")


def test_a_state_of_an_unsupported_type_in_open(tmp_path):
    get = opening(lambda ctx: ctx.get_state(ValueStateDescriptor("bad", object)))
    error = failure(tmp_path, get)
    assert type(error) is UnsupportedTypeError
    assert str(error).startswith("operator 'it': state 'bad': object is not a type")


def test_the_wrong_descriptor_in_open(tmp_path):
    error = failure(tmp_path, opening(lambda ctx: ctx.get_state(ListStateDescriptor("s", int))))
    assert "operator 'it': get_state takes a ValueStateDescriptor, got List" in str(error)


def test_state_without_a_key(tmp_path):
    class Map(MapFunction):
        def open(self, runtime_context):
            runtime_context.get_state(ValueStateDescriptor("s", int))

        def map(self, value):
            return value

    error = failure(tmp_path, lambda s: s.map(Map(), SCHEMA))
    assert "operator 'it' requests the keyed state 's', but its stream has no key" in str(error)


def test_a_state_asked_for_too_late(tmp_path):
    class Late(KeyedProcessFunction):
        def open(self, runtime_context):
            self.context = runtime_context

        def process_element(self, value, ctx):
            self.context.get_state(ValueStateDescriptor("late", int))

    error = failure(tmp_path, lambda s: s.key_by("k").process(Late(), SCHEMA))
    assert "operator 'it' requests the state 'late' after open()" in str(error)


class Wrong(KeyedProcessFunction):
    total = ValueStateDescriptor("total", int)

    def process_element(self, value, ctx):
        self.total.update(value.k)


def test_a_value_of_another_type_in_state(tmp_path):
    error = failure(tmp_path, lambda s: s.key_by("k").process(Wrong(), SCHEMA))
    assert isinstance(error, UserFunctionError)
    assert "state 'total' of operator 'it', key 'a'" in str(error)
    assert "self.total.update(value.k)" in str(error)


class TestTheWayThroughSpark:
    def test_kind_and_text_survive(self):
        through = RuntimeError(
            f"Traceback (most recent call last):\n {encode_error(NullKeyError('n'))}"
        )
        found = decode_error(through)
        assert type(found) is NullKeyError
        assert str(found) == "n"
        other = RuntimeError("something else")
        assert decode_error(other) is other

    def test_an_unknown_kind_is_a_failure_of_the_user(self):
        class Own(StateError):
            pass

        assert type(decode_error(encode_error(Own("x")))) is UserFunctionError

    def test_long_texts_are_cut(self):
        error = user_error(ValueError("x" * 10**6), "it", "mine", key="k" * 10**6)
        assert len(str(error)) < 3_000
        assert isinstance(encode_error(error), EncodedError)


def test_collect_keeps_what_was_committed_before_the_failure(tmp_path):
    env, sink = environment(2), CollectSink()
    source(env, "s", SCHEMA).map(invert, SCHEMA).sink_to(sink)
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"s": [("a", 1)]})
    with pytest.raises(UserFunctionError):
        engine.epoch({"s": [("b", 1), ("c", 0)]})
    assert sink.results == [("a", 1)]
