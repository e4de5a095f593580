from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnback.checkpoint.manifest import Fence, Manifest, Slot
from turnback.core.errors import CheckpointNotFoundError, CorruptFileError, FormatVersionError

Unreadable = CorruptFileError | FormatVersionError


@dataclass(frozen=True)
class Look:
    """The checkpoint log as one listing shows it.

    What is decided from it belongs together. Two listings would not: a slot can land in between.

    Attributes:
        slots: What was read: the newest slots, down to the newest fence.
        unreadable: Those among them that cannot be read.
        manifests: All slots that hold manifests or cannot be read, ascending.
    """

    slots: dict[int, Slot]
    unreadable: dict[int, Unreadable]
    manifests: tuple[int, ...]

    @property
    def top(self) -> Slot | None:
        """The newest slot, `None` if there is none.

        Raises:
            CorruptFileError: It is damaged.
        """
        number = max((*self.slots, *self.unreadable), default=None)
        if number in self.unreadable:
            raise self.unreadable[number]
        return self.slots[number] if number is not None else None


def read_down(numbers: Sequence[int], get: Callable[[int], Slot]) -> Look:
    """Read the log from the newest slot down to the newest fence.

    That fence knows what is below it, so the cost does not grow with the number of attempts the
    job has had.

    Args:
        numbers: The slots of one listing, ascending.
        get: Reads a slot; raises `CheckpointNotFoundError` for one that is not there.
    """
    slots: dict[int, Slot] = {}
    unreadable: dict[int, Unreadable] = {}
    below: set[int] = set()
    number = numbers[-1] if numbers else 0
    while number > 0:
        try:
            slots[number] = slot = get(number)
        except CheckpointNotFoundError:
            number = max((n for n in numbers if n < number), default=0)
            continue
        except (CorruptFileError, FormatVersionError) as error:
            unreadable[number] = error
        else:
            if isinstance(slot, Fence):
                below = set(slot.manifests).intersection(numbers)
                break
        # Listed or not: a listing takes time, and may show a slot and not the one before it.
        number -= 1
    manifests = {n for n, slot in slots.items() if isinstance(slot, Manifest)}
    return Look(slots, unreadable, tuple(sorted({*manifests, *unreadable, *below})))
