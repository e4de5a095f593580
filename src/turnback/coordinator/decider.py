"""Step 1 of a checkpoint: is one due? Pure, so that every case can be tested without waiting."""

from dataclasses import dataclass

from turnback.coordinator.config import CheckpointSettings


@dataclass(frozen=True)
class Trigger:
    """Take a checkpoint now."""

    kind: str


@dataclass(frozen=True)
class Wait:
    """Ask again after this time, or earlier if something happens."""

    ms: int


@dataclass(frozen=True)
class Nothing:
    """Ask again when something happens; the passing of time changes nothing."""


Decision = Trigger | Wait | Nothing


@dataclass(frozen=True)
class Situation:
    """What a decision depends on; times are in milliseconds of one monotonic clock.

    Attributes:
        started: When the coordinator started.
        in_flight: Checkpoints under way.
        changed: Whether there is something no checkpoint covers yet.
        requested: The oldest request of a user or of the end of the job ("manual", "final").
        last_trigger: When the last checkpoint was triggered.
        last_end: When the last one ended, well or not.
    """

    started: int
    in_flight: int = 0
    changed: bool = False
    requested: str | None = None
    last_trigger: int | None = None
    last_end: int | None = None


def decide(now: int, settings: CheckpointSettings, situation: Situation) -> Decision:
    """Say whether a checkpoint is due.

    Requests do not wait for the interval nor the pause, only for a free place.
    """
    if not situation.changed or situation.in_flight >= settings.max_concurrent:
        return Nothing()
    if situation.requested is not None:
        return Trigger(situation.requested)
    if settings.interval_ms is None:
        return Nothing()
    last = situation.started if situation.last_trigger is None else situation.last_trigger
    due = last + settings.interval_ms
    if situation.last_end is not None:
        due = max(due, situation.last_end + settings.min_pause_ms)
    return Trigger("periodic") if now >= due else Wait(due - now)
