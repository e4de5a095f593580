"""Which processes are killed, and when: all of it follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class Victim(StrEnum):
    """A kind of process that a job consists of."""

    DRIVER = "driver"
    JVM = "jvm"
    WORKER = "worker"
    SUPERVISOR = "supervisor"
    EXECUTOR = "executor"
    DATABASE = "database"
    BROKER = "broker"


SERVERS = (Victim.EXECUTOR, Victim.DATABASE, Victim.BROKER)
"""What there is only beside a job that works with servers."""


class Kind(StrEnum):
    """What a step does."""

    DRIVER = "driver"
    """Kill the Python process of the driver."""
    JVM = "jvm"
    """Kill the JVM of the driver."""
    WORKER = "worker"
    """Kill Python workers, or the process that forks them."""
    SUPERVISOR = "supervisor"
    """Kill the supervisor, and the one that the driver starts then."""
    EXECUTOR = "executor"
    """Kill executors."""
    DATABASE = "database"
    """Kill the database, and start it again, perhaps several times."""
    BROKER = "broker"
    """Kill the broker, and start it again."""
    SAVEPOINT = "savepoint"
    """Kill the driver while a savepoint is being taken."""
    SUPERVISOR_DRIVER = "supervisor-driver"
    """Kill the supervisor, and shortly after it the driver."""
    TWICE = "twice"
    """Kill something, and something else, or two more, while the job is being restarted."""


_WEIGHTS = {
    Kind.DRIVER: 2,
    Kind.JVM: 2,
    Kind.WORKER: 9,
    Kind.SUPERVISOR: 6,
    Kind.EXECUTOR: 9,
    Kind.DATABASE: 10,
    Kind.BROKER: 4,
    Kind.SAVEPOINT: 2,
    Kind.SUPERVISOR_DRIVER: 2,
    Kind.TWICE: 4,
}
_LONGEST_DELAY_S = {
    Kind.WORKER: 2.0,
    Kind.SUPERVISOR: 2.0,
    Kind.EXECUTOR: 2.0,
    Kind.DATABASE: 3.0,
    Kind.BROKER: 3.0,
    Kind.SAVEPOINT: 2.5,
    Kind.SUPERVISOR_DRIVER: 4.0,
    Kind.TWICE: 9.0,
}
_SEVERAL = (Kind.WORKER, Kind.SUPERVISOR, Kind.EXECUTOR, Kind.DATABASE)
"""Of these up to five are killed, one shortly after the other."""
_FIRST = (Victim.DRIVER, Victim.JVM)
_SECOND = (Victim.DRIVER, Victim.DRIVER, Victim.JVM, Victim.JVM, Victim.SUPERVISOR)


@dataclass(frozen=True)
class Step:
    """One attack on the job.

    Attributes:
        number: Counted from 1.
        kind: What is done.
        pause_s: How long the job may work before.
        delay_s: Time between the two parts of the step, for kinds that have two, or until a
            server is started again.
        victims: What is killed, in this order.
        pick: Which of several processes of the kind, as a fraction.
    """

    number: int
    kind: Kind
    pause_s: float
    delay_s: float
    victims: tuple[Victim, ...]
    pick: float

    def __str__(self) -> str:
        told = f"step {self.number}: {self.kind}, after {self.pause_s:.2f} s"
        if len(self.victims) > 1 or self.kind is Kind.SAVEPOINT:
            told += f", {' then '.join(self.victims)} with {self.delay_s:.2f} s between"
        return told


def plan(seed: int, without: Iterable[Victim] = ()) -> Iterator[Step]:
    """Steps without end, the same for the same seed.

    The first steps are one of every kind, in a random order; then kinds come by weight.

    Args:
        seed: Of everything that is random.
        without: Processes that are never killed.
    """
    choose, spared = random.Random(f"plan {seed}"), frozenset(without)
    kinds = [kind for kind in Kind if _possible(kind, spared)]
    deck = list(kinds)
    number = 0
    while True:
        choose.shuffle(deck)
        for kind in deck:
            number += 1
            yield _step(number, kind, choose, spared)
        deck = [kind for kind in kinds for _ in range(_WEIGHTS[kind])]


def _possible(kind: Kind, spared: frozenset[Victim]) -> bool:
    if kind is Kind.SAVEPOINT:
        return Victim.DRIVER not in spared
    if kind is Kind.SUPERVISOR_DRIVER:
        return not spared & {Victim.SUPERVISOR, Victim.DRIVER}
    if kind is Kind.TWICE:
        return not spared >= set(_FIRST)
    return Victim(kind.value) not in spared


def _step(number: int, kind: Kind, choose: random.Random, spared: frozenset[Victim]) -> Step:
    if kind is Kind.SAVEPOINT:
        victims: tuple[Victim, ...] = (Victim.DRIVER,)
    elif kind is Kind.SUPERVISOR_DRIVER:
        victims = (Victim.SUPERVISOR, Victim.DRIVER)
    elif kind is Kind.TWICE:
        several = (_FIRST, *(_SECOND,) * choose.randint(1, 2))
        victims = tuple(choose.choice([v for v in among if v not in spared]) for among in several)
    elif kind in _SEVERAL:
        victims = (Victim(kind.value),) * choose.randint(1, 5)
    else:
        victims = (Victim(kind.value),)
    return Step(
        number=number,
        kind=kind,
        pause_s=choose.uniform(0, 3),
        delay_s=choose.uniform(0, _LONGEST_DELAY_S.get(kind, 0)),
        victims=victims,
        pick=choose.random(),
    )
