"""Does a snapshot fit a program?"""

from __future__ import annotations

import pytest

from local_engine import collected, environment, source
from turnback import KeyedProcessFunction
from turnback.coordinator import Manifest
from turnback.core.errors import IncompatibleStateError
from turnback.runtime.match import check_plan, check_states
from turnback.state import StateSchema


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def schema(uid, name):
    return StateSchema(uid=uid, name=name, kind="value", key={}, value="long")


def manifest(*schemas, max_parallelism=128):
    return Manifest(
        job="j", job_id="id", number=7, attempt=1, epoch=1, created_ms=0, trigger="final",
        parent=None, max_parallelism=max_parallelism, sources={}, state=(), schemas=schemas,
        operators=(), transactions={}, watermarks={}, config={},
    )  # fmt: skip


@pytest.fixture
def plan():
    env = environment(2)
    keyed = source(env, "s", "k string").key_by("k").process(Pass(), "k string").uid("p")
    collected(keyed, "out")
    return env.plan()


def test_what_fits(plan):
    check_plan(manifest(schema("p", "x")), plan, allow_unclaimed=False)
    check_states(manifest(schema("p", "x")), [schema("p", "x"), schema("p", "new")])


def test_another_number_of_key_groups(plan):
    with pytest.raises(IncompatibleStateError, match=r"chk-7 of job 'j' has 64 .*parallelism\(64"):
        check_plan(manifest(max_parallelism=64), plan, allow_unclaimed=True)


def test_an_operator_that_is_gone(plan):
    old = manifest(schema("p", "x"), schema("gone", "y"), schema("gone", "x"))
    wanted = r"state 'x' of operator 'gone', state 'y' of operator 'gone'\..*allow_non_restored"
    with pytest.raises(IncompatibleStateError, match=wanted):
        check_plan(old, plan, allow_unclaimed=False)
    check_plan(old, plan, allow_unclaimed=True)


def test_a_state_that_is_gone():
    with pytest.raises(IncompatibleStateError, match=r"chk-7 holds .* state 'y' of operator 'p'"):
        check_states(manifest(schema("p", "x"), schema("p", "y")), [schema("p", "x")])
