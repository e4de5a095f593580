"""`IdempotentSink`: the template for targets where writing twice is the same as writing once."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence

from turnback.errors import SinkError
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    GuardedWriter,
    Sink,
    SinkWriter,
    UserCalls,
    WriterContext,
    require_open,
    sink_label,
)
from turnback.values.columns import Batch


class IdempotentSink(Sink):
    """Template for output that is written directly from the tasks, to targets with keys.

    The change that an element makes must depend on the element alone: set the value of its key, put
    a document under its id, upsert its row. An epoch can then safely be written again after a
    failure, and afterwards the target is as if it had been written once. Incrementing a counter or
    appending to a list is not idempotent: use another template for those.

    Everything happens in tasks, in this order: `open` at the first element of an epoch,
    `write_batch` any number of times, `flush` at the end of the epoch, `close`. A checkpoint is
    complete only after `flush` has returned in all tasks, so nothing is lost. There is no commit
    and no rollback.

    What readers may see:

    - elements of an epoch before its checkpoint is complete, and some of them without others;
    - after a failure, elements that are written again, and until that is complete older values,
      because the job resumes from its last checkpoint. It reaches the previous values again if the
      program produces the same output for the same input; otherwise keys that only the first run
      has written stay;
    - after a start from an older savepoint, the same over a longer time.

    **Late writers.** A task may continue after its job was started elsewhere (a paused machine, a
    lost executor), and overwrite a newer value with an old one. To prevent this, store
    `ctx.version` with each value and have the target refuse smaller versions, in one step:
    `set ... where version <= ?`. Equal versions must be accepted, in the order in which they are
    written: an epoch may write a key more than once, and is repeated under the same version if
    Spark runs its task again.

    **Other jobs.** Each job numbers its own attempts, so versions of two jobs do not show which
    value is newer: compare them only if both are of the job `(ctx.directory_id, ctx.job_id)`.
    Record in `acquire_target` which job owns the target, and have the target check the owner in the
    same step as it writes: a task of the former owner may write at any time.

    Of one epoch, elements of the same key are written by one task if the stream is keyed by it.
    Several attempts of one task may write at the same time (retries, speculation).

    The sink is pickled to the tasks, and each task and epoch uses its own copy: create connections
    in `open` and keep them on `self`.
    """

    def open(self, ctx: WriterContext) -> None:
        """Connect to the target; nothing by default.

        Called in the task, once for each attempt of the task and epoch that has elements.
        """
        return

    @abstractmethod
    def write_batch(self, batch: Batch, ctx: WriterContext) -> None:
        """Write elements, or collect them until `flush`.

        Called in the task, with `batch.rows` (objects) or `batch.arrow` (columns) in the order of
        the stream. All of it is called again, in a newer attempt with a greater `ctx.version`, if
        the job fails before the checkpoint is complete: it must be idempotent.
        """

    def flush(self) -> None:
        """Make everything written durable; nothing by default.

        Called in the task, once, after the last `write_batch`. Data that is not durable when it
        returns may be lost, because the checkpoint counts it as written.
        """
        return

    def close(self) -> None:
        """Close what `open` opened; nothing by default.

        Called in the task after `flush`, or after a failure; not if the process is killed.
        """
        return

    def writer(self, ctx: WriterContext) -> SinkWriter:
        return _IdempotentWriter(copy.copy(self), ctx)

    def committer(self, ctx: CommitterContext) -> Committer:
        return _NothingToCommit(ctx)


class _IdempotentWriter(UserCalls, GuardedWriter):
    def __init__(self, sink: IdempotentSink, ctx: WriterContext) -> None:
        super().__init__(sink, ctx)
        GuardedWriter.__init__(self, ctx)
        self._sink = sink
        self._is_open = False

    def _add(self, batch: Batch) -> None:
        if not self._is_open:
            self._is_open = True  # `open` may fail halfway, and leave something to close
            self._call("open", self._sink.open, self._ctx)
        self._call("write_batch", self._sink.write_batch, batch, self._ctx)

    def prepare(self) -> bytes | None:
        require_open(self._closed, self._name)
        if self._is_open:
            with self._failures():
                self._call("flush", self._sink.flush)
        self.abort()
        return None

    def abort(self) -> None:
        """Let go of the target; what was written stays, and is written again."""
        self._closed = True
        if self._is_open:
            self._is_open = False
            self._call("close", self._sink.close)


class _NothingToCommit:
    """The committer of sinks whose tasks have done everything."""

    def __init__(self, ctx: CommitterContext) -> None:
        self._name = sink_label(ctx.job, ctx.uid)

    def commit(self, transactions: Sequence[bytes]) -> None:
        if transactions:
            raise SinkError(
                f"{self._name}: a checkpoint contains {len(transactions)} transactions of "
                "another kind of sink, but an idempotent sink has none; restore the old sink "
                "once to resolve them, or use another uid"
            )

    def abort(self, transactions: Sequence[bytes]) -> None:
        """Nothing can be rolled back."""

    def recover(self, pending: Sequence[bytes]) -> None:
        self.commit(pending)

    def abort_orphans(self, known: Sequence[bytes]) -> None:
        """Nothing can be rolled back."""
