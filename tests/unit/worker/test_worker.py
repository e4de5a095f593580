"""Programs on their way to the workers."""

from __future__ import annotations

import pickle
import threading

import pytest

from local_engine import collected, environment, source
from turnback import KeyedProcessFunction
from turnback.errors import PlanError, StateError
from turnback.spark import worker
from turnback.spark.pickling import pickle_by_value
from turnback.state.files import StorageRef
from turnback.worker.message import EpochCommand, encode_command
from turnback.worker.program import level_programs, load_program, pickled


class Pass(KeyedProcessFunction):
    closed: list[str] = []

    def __init__(self, held=None):
        self.held = held

    def close(self):
        Pass.closed.append("closed")

    def process_element(self, value, ctx):
        yield value


def program(function):
    env = environment(2)
    keyed = source(env, "s", "k string").key_by("k").process(function, "k string").uid("mine")
    collected(keyed, "out")
    return level_programs(env.plan())[0]


def test_what_cannot_be_sent_is_told_by_uid():
    with pytest.raises(PlanError, match=r"^cannot send operator 'mine'.*lock.*open\(\)"):
        pickled(program(Pass(threading.Lock())), pickle_by_value)


def test_what_cannot_be_loaded_is_no_matter_of_restarts():
    for blob in (b"cno_such_module\nname\n.", b"cturnback\nNoSuchName\n."):
        with pytest.raises(PlanError, match=r"the workers cannot load the program: .*--py-files"):
            load_program(blob)
    assert load_program(pickled(program(Pass()), pickle_by_value)).next_parallelism is None


class TestInstances:
    @pytest.fixture(autouse=True)
    def none_left(self):
        worker._close_all()
        Pass.closed.clear()
        yield
        worker._close_all()

    def instance(self, job="job", attempt=1, partition=0, nonce="n"):
        task = worker.LevelTask(pickle.dumps(program(Pass())), 0, False)
        key = worker.InstanceKey(job, attempt, f"{attempt}-{nonce}", 0, partition)
        return task._instance(key, partition)

    def test_functions_stay_open_from_epoch_to_epoch(self):
        assert self.instance() is self.instance()
        assert self.instance() is not self.instance(partition=1)
        assert self.instance() is not self.instance(job="another")
        assert Pass.closed == []

    def test_a_new_attempt_closes_those_of_older_ones(self):
        self.instance()
        self.instance(partition=1)
        self.instance(job="another")
        self.instance(attempt=2)
        assert len(Pass.closed) == 2
        assert sorted(key[:2] for key in worker._instances) == [("another", 1), ("job", 2)]

    def test_a_late_task_of_an_older_attempt_closes_nothing(self):
        newer = self.instance(attempt=2)
        self.instance()
        assert self.instance(attempt=2) is newer

    def test_a_copy_of_the_job_has_functions_of_its_own(self):
        """A copied directory has the same id, and goes on with the same attempt numbers."""
        assert self.instance() is not self.instance(job="copy")
        assert Pass.closed == []

    def test_an_attempt_of_another_driver_has_functions_of_its_own(self):
        """A directory that was put back goes on with numbers that were used before."""
        before = self.instance()
        assert self.instance(nonce="other") is not before
        assert Pass.closed == ["closed"]

    def test_only_so_many_are_kept(self, monkeypatch):
        monkeypatch.setattr(worker, "_MAX_INSTANCES", 3)
        first = self.instance()
        for partition in (1, 2):
            self.instance(partition=partition)
        assert self.instance() is first
        self.instance(partition=3)
        assert Pass.closed == ["closed"]
        assert ("job", 1, "1-n", 0, 1) not in worker._instances
        assert self.instance() is first

    def test_all_are_closed_at_the_end(self):
        self.instance()
        worker._close_all()
        assert Pass.closed == ["closed"]

    def test_one_that_failed_is_not_used_again(self, monkeypatch):
        instance = self.instance()
        command = EpochCommand("job", "id", 1, 1, "rocksdb", None, StorageRef("job"), {}, "1-n")
        numbers = {"partitionId": 0, "taskAttemptId": 7, "stageId": 3, "attemptNumber": 0}
        members = {name: lambda s, v=value: v for name, value in numbers.items()}
        members["getLocalProperty"] = lambda s, key: {"turnback.order.0": encode_command(command)}[
            key
        ]
        context = type("Context", (), members)()
        monkeypatch.setattr(worker.TaskContext, "get", lambda: context)

        def run(*_):
            raise StateError("half done")
            yield

        monkeypatch.setattr(instance, "run", run)
        task = worker.LevelTask(pickle.dumps(program(Pass())), 0, False)
        with pytest.raises(Exception, match=r"half done.*\n.*<<turnback "):
            list(task(iter(())))
        assert self.instance() is not instance
