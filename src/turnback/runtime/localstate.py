from __future__ import annotations

import logging
import uuid

from turnback.core.errors import StateError
from turnback.runtime.localstores import LocalStores, StoreOwner, sweep_unused
from turnback.runtime.message import Order, TaskName
from turnback.runtime.program import LevelProgram
from turnback.runtime.storageref import read_state, storage_of
from turnback.state import (
    DeltaBuilder,
    Home,
    KeyedStateBackend,
    StateFile,
    StateSchema,
    open_home,
)

_LOG = logging.getLogger(__name__)
MAX_INLINE = 5 * 1024 * 1024


class LocalState:
    """The keyed state of one task in one epoch: opened at the last confirmed one, then drained."""

    def __init__(
        self,
        program: LevelProgram,
        order: Order,
        name: TaskName,
        backends: list[KeyedStateBackend],
    ) -> None:
        self._program = program
        self._order = order
        self._name = name
        self._backends = backends
        self._home: Home | None = None

    @property
    def found(self) -> str:
        """Whether the state was at home, caught up or rebuilt; empty without state."""
        return self._home.found if self._home else ""

    def schemas(self) -> tuple[StateSchema, ...]:
        """The states the operators have registered."""
        return tuple(schema for backend in self._backends for schema in backend.schemas())

    def open(self) -> None:
        """Bring the local store to the last confirmed epoch."""
        schemas = self.schemas()
        if not schemas:
            return
        order, partition = self._order, self._name.partition
        owner = StoreOwner(job=order.job, job_id=order.job_id, directory=order.storage.uri)
        stores = LocalStores.of(owner, order.backend, order.local_dir)
        self._home = open_home(
            order.backend,
            stores.store(self._program.level.index, partition),
            order.files.get(partition, ()),
            lambda file: read_state(order.storage, file),
            schemas,
            self._program.groups(partition),
            layout=self._program.layout(),
        )
        _mark(stores, owner)
        for backend in self._backends:
            backend.begin(self._home.store, order.epoch)

    def snapshot(self) -> StateFile | None:
        """Write what changed; durable when this returns."""
        if self._home is None:
            return None
        order = self._order
        builder = DeltaBuilder(order.epoch)
        for backend in self._backends:
            backend.drain(builder)
        delta = builder.build()
        if delta is None:
            return None
        name = self._name
        path = (
            f"state/{order.attempt}/{self._program.level.index}-{name.partition}"
            f"-{order.epoch}-{name.attempt}-{uuid.uuid4().hex[:12]}.arrow"
        )
        if order.storage.inline:
            _check_small(delta.data, order.job)
        else:
            storage_of(order.storage).put(path, delta.data)
        return delta.file(path, order.epoch, order.line, inline=order.storage.inline)

    def close(self) -> None:
        """Give the local store back."""
        if self._home is not None:
            self._home.close()


def _mark(stores: LocalStores, owner: StoreOwner) -> None:
    """Say whose the stores are, and remove those beside them that nobody uses any more."""
    try:
        stores.mark_used(owner)
    except OSError as error:
        _LOG.warning("%s cannot be marked as used: %s", stores.path, error)
    sweep_unused(stores)


def _check_small(data: bytes, job: str) -> None:
    if len(data) > MAX_INLINE:
        raise StateError(
            f"job {job!r}: a task changed {len(data)} bytes of state in one epoch, above the "
            f"{MAX_INLINE} that jobmanager checkpoint storage takes; use filesystem storage"
        )
