from collections.abc import Sequence
from typing import Protocol, runtime_checkable


class Committer(Protocol):
    """Settles the transactions of one sink, on the driver.

    The methods are called one at a time, but not always from the same thread. They may block: the
    stream goes on meanwhile.
    """

    def commit(self, transactions: Sequence[bytes]) -> None:
        """Make transactions visible, oldest first.

        Called after the manifest that holds them is durable, and again with the same ones after
        any failure: it must be idempotent.
        """

    def abort(self, transactions: Sequence[bytes]) -> None:
        """Roll back transactions that no manifest holds; those already gone are fine."""

    def recover(self, pending: Sequence[bytes]) -> None:
        """Commit `pending` and roll back everything else dead attempts of this job left behind.

        Called once at the start of an attempt, before its first epoch.
        """


@runtime_checkable
class DiscardsOthers(Protocol):
    """A committer that can find transactions that nobody will ever commit, and roll them back."""

    def discard_others(self, known: Sequence[bytes]) -> None:
        """Roll back what tasks of this attempt have begun or prepared, except for `known`.

        Called between two epochs, so that whatever is open and not known is of a task attempt
        whose output did not count.
        """
