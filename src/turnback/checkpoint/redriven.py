"""How far a checkpoint is with dead letters that were fed back, and which ones are in its past.

A job may be turned back: elements that became dead letters after that point come again from the
sources, and must not be fed back as well. So a checkpoint knows the epochs it has come from.
"""

from __future__ import annotations

import msgspec


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Attempts that went on one from the other, up to an epoch: `first` to `last`."""

    first: int
    last: int
    epoch: int


class Redriven(msgspec.Struct, frozen=True):
    """What a checkpoint knows of dead letters.

    Attributes:
        batches: How many batches of them have been fed back.
        past: What it has come from, the oldest first, and itself at the end. Between stretches the
            job was turned back.
    """

    batches: int = 0
    past: tuple[Stretch, ...] = ()

    def has(self, attempt: int, epoch: int) -> bool:
        """Whether an epoch of an attempt is in the past."""
        return any(s.first <= attempt <= s.last and epoch <= s.epoch for s in self.past)

    def begin(self, attempt: int, epoch: int, *, continues: bool = False) -> Redriven:
        """What holds for an attempt that starts from this, at an epoch.

        `continues` keeps the past short: it starts from the newest checkpoint there is.
        """
        past = (*self.past, Stretch(attempt, attempt, epoch))
        if continues and self.past:
            past = (*self.past[:-1], Stretch(self.past[-1].first, attempt, epoch))
        return Redriven(self.batches, past)

    def advance(self, epoch: int, batches: int) -> Redriven:
        """The same after an epoch, and so many batches."""
        past = (*self.past[:-1], msgspec.structs.replace(self.past[-1], epoch=epoch))
        return Redriven(batches, past)


NOTHING_REDRIVEN = Redriven()
"""Of a job that knows nothing of dead letters."""
