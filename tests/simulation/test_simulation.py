"""A few hundred seeds, and that the simulation can fail: it notices defects that are planted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.plants import PLANTS

TESTS = Path(__file__).parent.parent


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, in which sets have the same order each time."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "simulation", *arguments],
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "sinks", ["", "kafka", "kafka-streaming", "postgres,mariadb-upsert", "redis,redis-string"]
)
def test_nothing_is_lost_or_doubled(sinks: str) -> None:
    played = simulate("--seeds", "100" if sinks else "200", "--sinks", sinks)
    assert played.returncode == 0, played.stderr + played.stdout


@pytest.mark.parametrize("sinks", ["", "kafka", "redis"])
def test_a_seed_gives_the_same_story_again(sinks: str) -> None:
    stories = [simulate("--seed", "7", "--sinks", sinks).stdout for _ in range(2)]
    assert "== driver 1 starts" in stories[0]
    assert stories[0] == stories[1]


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_a_planted_defect_is_noticed(plant: str) -> None:
    played = simulate("--seeds", "2000", "--plant", plant)
    assert played.returncode == 1, f"no seed has noticed {plant}"
    assert f"--plant {plant} --seed" in played.stdout
    assert "== driver 1 starts" in played.stderr  # the story
