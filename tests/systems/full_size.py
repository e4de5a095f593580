"""Kills the ledger job forty times on every exactly-once sink: a part of `make soak`.

    python tests/systems/full_size.py                         # all of them
    python tests/systems/full_size.py kafka postgres --kills 40 --size 500x400 --seed 7

The ledger has 200,000 transfers between 1,000 accounts and 8 hot ones, numbered within 500 keys.
A reader looks at the target all the while: no number twice, none missing before another, no row
that goes away, and no money made or lost. Half of the kills are at named points, each in turn, the
others at random moments; the seed decides them all, and is printed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kills_contract import POINTS
from ledger import CALM, Kill, Ledger
from ledger_targets import KafkaTarget, SqlTarget, TableTarget, Target

from services import kafka, mariadb, postgres

ONCE = ("after-fence", "before-first-epoch")
"""Points that a driver passes once."""
EVERYWHERE = (
    *ONCE,
    "before-state-file",
    "before-manifest",
    "after-manifest",
    "after-sink-commit",
    "during-cleanup",
)
_IN_DATABASES = {point.partition(":")[0] for point in POINTS}.difference(EVERYWHERE)
OWN: dict[str, tuple[str, ...]] = {
    "postgres": tuple(sorted(_IN_DATABASES)),
    "mysql": tuple(sorted(_IN_DATABASES)),
    "kafka": ("between-sink-commits",),
    "delta": (),
    "iceberg": (),
}
"""By target, the points of its own sinks."""
FILES_PER_KILL = 8
"""Enough for the job not to end before the last kill, as it runs `CALM`."""


def plan(kind: str, kills: int, seed: int) -> list[Kill]:
    """Named points, each in turn, and random moments in between."""
    choose = random.Random(seed)
    points = [*EVERYWHERE, *OWN[kind]]
    choose.shuffle(points)
    named = itertools.cycle(points)
    planned: list[Kill] = []
    for number in range(kills):
        if number % 2:
            planned.append(round(choose.uniform(0.1, 0.8), 3))
        else:
            point = next(named)
            planned.append(f"{point}:{1 if point in ONCE else choose.randint(1, 3)}")
    return planned


@contextmanager
def running(kind: str, directory: Path) -> Iterator[Target]:
    """Start the server of a target, if it has one."""
    if kind == "kafka":
        (directory / "kafka").mkdir()
        with kafka.kafka_broker(directory / "kafka") as broker:
            yield KafkaTarget(broker)
    elif kind == "postgres":
        with postgres.postgres_server() as server:
            yield SqlTarget(kind, server, {"dsn": server.dsn}, postgres.PASSWORD)
    elif kind == "mysql":
        with mariadb.mariadb_server() as server:
            yield SqlTarget(kind, server, dict(server.parameters), mariadb.PASSWORD)
    else:
        yield TableTarget(kind, directory / "tables")


def run(target: Target, directory: Path, kills: int, keys: int, length: int, seed: int) -> Ledger:
    """Run the job under its kills; what was wrong at any time is in `problems`."""
    files = FILES_PER_KILL * kills
    ledger = Ledger(directory, target, keys=keys, length=length, files=files, seed=seed)
    try:
        with ledger.watched():
            ledger.run_with_kills(plan(target.kind, kills, seed), *CALM)
        ledger.problems += ledger.examine()
    finally:
        ledger.kill()
    return ledger


def main() -> int:
    """Exit with 0 if nothing was wrong with any target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(OWN)}")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--size", default="500x400", help="keys x transfers of each")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    args = parser.parse_args()
    unknown = set(args.targets) - set(OWN)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    keys, _, length = args.size.partition("x")
    failed = False
    for kind in args.targets or OWN:
        directory = Path(tempfile.mkdtemp(prefix=f"turnback-{kind}-"))
        print(f"{kind}: {args.kills} kills, seed {args.seed}", flush=True)
        with running(kind, directory) as target:
            began = time.monotonic()
            ledger = run(target, directory, args.kills, int(keys), int(length), args.seed)
            took = time.monotonic() - began
        told = "; ".join(ledger.problems[:5]) or "nothing lost, nothing twice"
        seen = f"{len(ledger.truth):,} transfers, read {ledger.reads} times meanwhile"
        print(f"{kind}: {seen}, {took:.0f} s: {told}", flush=True)
        if ledger.problems:
            print(f"everything is kept in {directory}", flush=True)
            failed = True
        else:
            shutil.rmtree(directory)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
