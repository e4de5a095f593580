"""A few hundred seeds, and that the simulation can fail: it notices defects that are planted."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from simulation.plants import NOTICED_BY, PLANTS
from tiers import examples

TESTS = Path(__file__).parent.parent
_SEEDS = 2000


class Played(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Simulate = Callable[..., Played]


@pytest.fixture(scope="module")
def simulate() -> Iterator[Simulate]:
    """Plays in a process of its own each, in which sets have the same order each time."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [sys.executable, "-m", "simulation", "--serve"],
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None
    asked, answered = server.stdin, server.stdout

    def play(*arguments: str) -> Played:
        print(json.dumps(arguments), file=asked, flush=True)
        return Played(*json.loads(answered.readline()))

    yield play
    asked.close()
    server.wait()


@pytest.mark.parametrize(
    "sinks",
    [
        "",
        "two-phase,write-ahead,idempotent",
        "kafka",
        "kafka-streaming",
        "postgres,mariadb-upsert",
        "redis,redis-string",
        "delta,iceberg-joined",
    ],
)
def test_nothing_is_lost_or_doubled(simulate: Simulate, sinks: str) -> None:
    seeds = examples(100 if sinks else 400)
    played = simulate("--seeds", str(seeds), "--sinks", sinks)
    assert played.returncode == 0, played.stderr + played.stdout


@pytest.mark.parametrize("sinks", ["", "kafka", "redis"])
def test_a_seed_gives_the_same_story_again(simulate: Simulate, sinks: str) -> None:
    stories = [simulate("--seed", "7", "--sinks", sinks).stdout for _ in range(2)]
    assert "== driver 1 starts" in stories[0]
    assert stories[0] == stories[1]


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_a_planted_defect_is_noticed(simulate: Simulate, plant: str) -> None:
    # The seeds before come last: if the first to notice has changed, this only takes longer.
    first = min(NOTICED_BY.get(plant, 0), _SEEDS)
    played = simulate("--first", str(first), "--seeds", str(_SEEDS - first), "--plant", plant)
    if played.returncode == 0:
        played = simulate("--seeds", str(first), "--plant", plant)
    assert played.returncode == 1, f"no seed has noticed {plant}"
    assert f"--plant {plant} --seed" in played.stdout
    assert "== driver 1 starts" in played.stderr  # the story
