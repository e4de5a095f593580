"""What `execute` runs, under which name, and when it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from turnback import CheckpointingMode, CollectSink, JobClient, StreamExecutionEnvironment
from turnback.api.environment import Launched, program_name
from turnback.errors import ConfigurationError, PlanError
from turnback.job.run import Launch, RunDirectory
from turnback.testing import LocalEngine


@pytest.fixture
def env(tmp_path: Path) -> StreamExecutionEnvironment:
    environment = StreamExecutionEnvironment(None, tmp_path / "jobs", engine=LocalEngine())
    return environment.set_parallelism(2)


def numbers(env: StreamExecutionEnvironment, *values: int) -> Any:
    return env.from_collection(list(values), int, uid="numbers")


def collected(stream: Any, uid: str = "out") -> CollectSink:
    sink = CollectSink()
    stream.sink_to(sink).uid(uid)
    return sink


def test_a_program_that_was_executed_is_done(env: StreamExecutionEnvironment) -> None:
    first = collected(numbers(env, 1, 2))
    env.execute("first", bounded=True)
    second = collected(numbers(env, 3))
    env.execute("second", bounded=True)
    assert (first.results, second.results) == ([1, 2], [3])
    message = "nothing to execute: the program was executed as job 'second'"
    with pytest.raises(PlanError, match=message):
        env.execute("third")
    with pytest.raises(PlanError, match=message):
        env.execute_async("third")


def test_a_stream_can_be_read_again_by_the_next_program(env: StreamExecutionEnvironment) -> None:
    doubled = numbers(env, 1, 2).map(lambda n: 2 * n, int).uid("doubled")
    first = collected(doubled)
    env.execute("first", bounded=True)
    second = collected(doubled.map(lambda n: n + 1, int).uid("more"), "second")
    env.execute("second", bounded=True)
    assert (first.results, second.results) == ([2, 4], [3, 5])


def test_a_list_ends(env: StreamExecutionEnvironment) -> None:
    sink = collected(numbers(env, 1, 2).union(env.from_collection([3], int, uid="more")))
    env.execute("job")
    assert sorted(sink.results) == [1, 2, 3]


def test_what_does_not_end_by_nature_goes_on(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "input").mkdir()
    collected(numbers(env, 1).union(files(env, tmp_path / "input")))
    assert_not_bounded(env.execute_async("with files"))
    collected(numbers(env, 1))
    assert_not_bounded(env.execute_async("told so", bounded=False))


def files(env: StreamExecutionEnvironment, path: Path) -> Any:
    read = env.from_files(path, "json", "n bigint", uid="files")
    return read.map(lambda row: row.n, int).uid("n")


def assert_not_bounded(client: JobClient) -> None:
    assert not client._runner.spec.bounded
    client.cancel()
    client.result()


def test_a_single_file_is_read_once(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    for _ in range(2):
        file.write_text('{"n": 1}\n{"n": 2}\n')
        (tmp_path / "other.json").write_text('{"n": 3}\n')
        sink = collected(files(env, file))
        env.execute("job")
    assert sink.results == [1, 2]


PROGRAM = """
from turnback import StreamExecutionEnvironment
from turnback.sinks import DiscardSink
from turnback.testing import LocalEngine

env = StreamExecutionEnvironment(None, "jobs", engine=LocalEngine())
env.from_collection([1], int).sink_to(DiscardSink())
print(env.execute().job_name)
"""


@pytest.mark.slow
def test_a_job_is_named_after_its_script(tmp_path: Path) -> None:
    package = tmp_path / "shop" / "orders"
    package.mkdir(parents=True)
    for path in (tmp_path / "my clicks.py", package / "daily.py", package / "__main__.py"):
        path.write_text(PROGRAM)
    assert run(tmp_path, "my clicks.py").stdout.split("\n") == ["my clicks", ""]
    assert run(tmp_path, "-m", "shop.orders.daily").stdout == "daily\n"
    assert run(tmp_path, "-m", "shop.orders").stdout == "orders\n"
    assert {path.name for path in (tmp_path / "jobs").iterdir()} == {
        "my%20clicks",
        "daily",
        "orders",
    }


@pytest.mark.slow
def test_what_is_no_script_has_to_name_its_job(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", PROGRAM)
    assert done.returncode
    assert (
        "the job needs a name, which identifies it when it is started again: execute('my-job')"
        in done.stderr
    )
    assert not (tmp_path / "jobs").exists()


def test_turnback_run_names_jobs_likewise(tmp_path: Path) -> None:
    launch = Launch(script="/programs/clicks.py", arguments=(), directory=str(tmp_path))
    directory = RunDirectory(tmp_path)
    assert program_name(Launched(launch, directory)) == "clicks"
    assert program_name(Launched(replace(launch, name="variant-b"), directory)) == "variant-b"


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


class ExactlyOnceSink(CollectSink):
    needs_checkpoints = True


@pytest.mark.parametrize("mode", [None, CheckpointingMode.AT_LEAST_ONCE])
def test_a_sink_that_is_exactly_once_is_refused_in_a_job_that_is_not(
    env: StreamExecutionEnvironment, mode: CheckpointingMode | None
) -> None:
    if mode is not None:
        env.enable_checkpointing(10, mode)
    numbers(env, 1).sink_to(ExactlyOnceSink()).uid("exact")
    with pytest.raises(ConfigurationError, match=r"sink 'exact' is exactly-once.*enable_checkp"):
        env.execute("likes", bounded=True)
    assert not (Path(env.configuration.value("state.checkpoints.dir")) / "likes").exists()


def test_a_sink_that_is_exactly_once_runs_with_checkpoints(env: StreamExecutionEnvironment) -> None:
    env.enable_checkpointing(10)
    sink = ExactlyOnceSink()
    numbers(env, 1).sink_to(sink).uid("exact")
    env.execute("likes", bounded=True)
    assert sink.results == [1]


def test_jobs_in_memory_belong_to_their_directory(tmp_path: Path) -> None:
    """A second test with a job of the same name does not resume the first one's."""
    for directory in "ab":
        in_memory = {"execution.checkpointing.storage": "jobmanager"}
        env = StreamExecutionEnvironment(
            None, tmp_path / directory, in_memory, engine=LocalEngine()
        )
        sink = collected(numbers(env, 1, 2))
        env.execute("job", bounded=True)
        assert sink.results == [1, 2]
