from collections import deque
from collections.abc import Callable, Mapping


class OpenTransactions:
    """Sink transactions that are prepared and not yet known to be committed.

    Not thread-safe; the coordinator guards it.
    """

    def __init__(self) -> None:
        self._open: dict[str, deque[tuple[int, bytes]]] = {}

    def add(self, epoch: int, prepared: Mapping[str, tuple[bytes, ...]]) -> None:
        """Take over what sinks prepared in an epoch."""
        for uid, transactions in prepared.items():
            queue = self._open.setdefault(uid, deque())
            queue.extend((epoch, transaction) for transaction in transactions)

    def upto(self, epoch: int) -> dict[str, tuple[bytes, ...]]:
        """Return what is open of all epochs up to this one, oldest first, by sink uid."""
        return self._select(lambda prepared: prepared <= epoch)

    def after(self, epoch: int) -> dict[str, tuple[bytes, ...]]:
        """Return what is open of the epochs after this one, oldest first, by sink uid."""
        return self._select(lambda prepared: prepared > epoch)

    def committed(self, uid: str, epoch: int) -> None:
        """Forget what a sink has committed: everything up to this epoch."""
        queue = self._open.get(uid)
        while queue and queue[0][0] <= epoch:
            queue.popleft()

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def _select(self, wanted: Callable[[int], bool]) -> dict[str, tuple[bytes, ...]]:
        found = {
            uid: tuple(transaction for epoch, transaction in queue if wanted(epoch))
            for uid, queue in self._open.items()
        }
        return {uid: transactions for uid, transactions in found.items() if transactions}
