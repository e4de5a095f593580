"""What a job needs of whatever runs it: Spark, or one process in tests.

An `Engine` makes sources, runs tasks, and opens a `Query` for each attempt. The query reads all
sources together and calls back with one `EpochInput` after the other; the attempt runs the epoch
on it. Nothing in this folder knows which engine it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from turnback.checkpoint.manifest import SourcePosition
from turnback.driver.job import JobSpec
from turnback.plan.bad_records import ErrorPolicy
from turnback.plan.plan import Plan
from turnback.plan.sources import EpochLimit
from turnback.storage.base import Storage
from turnback.values.typeinfo import RowTypeInfo, TypeInfo
from turnback.worker.message import Barrier, EpochCommand, TaskAck

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Sources = Mapping[str, SourcePosition]
"""The position of every stream, by its name; see `stream_names`."""


def stream_names(counts: Mapping[str, int]) -> list[str]:
    """A name for every stream of the sources, in the engine's order; see `Engine.stream_counts`."""
    names: list[str] = []
    for uid, count in counts.items():
        names += [uid] if count == 1 else [f"{uid}#{i}" for i in range(count)]
    return names


class Task(Protocol[T_co]):
    """Work for some executor; frozen and picklable."""

    def run(self) -> T_co:
        """Do it."""


class EpochInput(Protocol):
    """The input of one epoch."""

    def run(self, description: str, commands: Sequence[EpochCommand]) -> list[Barrier]:
        """Run all levels once, each as its command says; may be called again to replay the epoch.

        Returns the barriers of the last level, with the acknowledgements of all tasks. Raises
        `EpochConflictError` if output of a task was lost after others had read it.
        """

    def source_tasks(self) -> int:
        """How many tasks the first level had, if it reads the sources in their own tasks."""

    def positions(self) -> Sources | None:
        """Where each stream goes on after this epoch; None for where it was.

        Durable when this returns.
        """

    def file_order(self) -> dict[int, int]:
        """The place of every new file in its source, by `spark_hash` of its path."""

    def partitions(self) -> Mapping[str, Sequence[str]] | None:
        """The names of the partitions of streams that have any; None if no input tells."""


class Query(Protocol):
    """Reads all sources of one attempt."""

    def restore(self, sources: Sources) -> None:
        """Go on from these positions; called at most once, before `start`."""

    def start(self, on_input: Callable[[EpochInput], None]) -> None:
        """Begin to read; `on_input` runs an epoch, one at a time, in a thread of the query."""

    def empty_input(self) -> EpochInput:
        """For an epoch without input, which the caller runs while no other runs."""

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the input, or at most so long; return whether it has ended.

        Raises what `on_input` or the source raised.
        """

    def stop(self) -> None:
        """End it, also in the middle of an epoch."""

    def close(self) -> None:
        """Give up what it has on this machine, and close the functions of the attempt."""

    def has_rerun(self, acks: Sequence[TaskAck]) -> bool:
        """Whether tasks that acknowledge to sinks were run more than once, or may have been."""


class Engine(Protocol):
    """Runs jobs."""

    @property
    def cores(self) -> int:
        """How many tasks run at the same time."""

    @property
    def is_local(self) -> bool:
        """Whether all tasks run on this machine, in the driver's environment."""

    def file_source(
        self,
        path: str,
        format: str,
        type: RowTypeInfo,
        limit: EpochLimit,
        options: Mapping[str, Any],
        on_malformed: ErrorPolicy | None,
    ) -> Any:
        """A stream of the records of files; see `StreamExecutionEnvironment.from_files`."""

    def collection_source(self, elements: Sequence[Any], type: Any) -> tuple[Any, TypeInfo]:
        """A stream of the elements of a list, and their type."""

    def stream_counts(self, plan: Plan) -> dict[str, int]:
        """How many streams each source reads, by its uid."""

    def pickle(self, value: object) -> bytes:
        """Pickle something for tasks, with what the user's script defines in it."""

    def run_tasks(self, description: str, tasks: Sequence[Task[T]]) -> list[T]:
        """Run tasks, beside the epochs; return their results in order, or raise what one raised."""

    def query(self, plan: Plan, spec: JobSpec, storage: Storage, attempt: int) -> Query:
        """The query of an attempt, whose sources may keep files in the job's storage."""

    def lost(self) -> str | None:
        """What has become of the engine, if nothing can be run on it any more."""

    def web_ui(self) -> str | None:
        """The address of the engine's own web pages, if it has any."""

    def application(self) -> str | None:
        """What the cluster calls the application that the job runs in, if it runs on one."""
