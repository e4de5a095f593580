"""Bad records and kill -9: the others, dead letters and those fed back are there exactly once."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from crash import poison_job
from crash.driver import Driver
from tiers import with_examples

POINTS = {
    "before-manifest": "before-manifest",
    "after-manifest": "after-manifest",
    "between-sink-commits": "before-state-file",
    "after-sink-commit": "after-sink-commit",
}
"""Where drivers are killed while records become dead letters, and while these are fed back."""
BAD = [n for n in range(poison_job.FILES * poison_job.MANY) if poison_job.is_bad(n)]


class Poison:
    """The job in its place, and what readers see there."""

    def __init__(self, base: Path, policy: str) -> None:
        self.base, self.policy = base, policy
        self.elements = poison_job.write_input(base / "input")
        self.drivers: list[Driver] = []

    def run(self, *arguments: str, kill_at: str | None = None, status: int = 0) -> Driver:
        """Run a driver to its end, or until it is killed."""
        environment = {} if kill_at is None else {"TURNBACK_KILL_AT": kill_at}
        directory = self.base / f"driver-{len(self.drivers)}"
        words = [str(self.base), self.policy, *arguments]
        program = Path(poison_job.__file__)
        driver = Driver(words, directory, self.base / "gate", environment, program)
        self.drivers.append(driver)
        assert driver.wait() == (status if kill_at is None else -signal.SIGKILL), driver.errors
        return driver

    def rows(self, sink: str) -> list[dict[str, object]]:
        lines = [p.read_text().splitlines() for p in (self.base / sink).glob("*.json")]
        return [json.loads(line) for some in lines for line in some]

    def assert_exact(self, elements: list[tuple[str, int]]) -> None:
        """Each element is there once, and has a number of its own among those of its key."""
        rows = self.rows("out")
        assert sorted((row["key"], row["n"]) for row in rows) == sorted(elements)
        numbers = Counter((row["key"], row["m"]) for row in rows)
        counts = Counter(key for key, _ in elements)
        assert numbers == Counter((k, m) for k, n in counts.items() for m in range(1, n + 1))

    def redrive(self) -> dict[str, object]:
        program = Path(sys.executable).with_name("turnback")
        words = ["redrive", poison_job.JOB, str(self.base / "letters"), "--json"]
        root = ["--root", str(self.base / "jobs")]
        done = subprocess.run(
            [program, *words, *root], capture_output=True, text=True, timeout=120, check=True
        )
        return json.loads(done.stdout)


@pytest.mark.parametrize(
    "point", with_examples(["before-manifest", "after-manifest"], ("after-manifest",))
)
def test_they_end_the_job(tmp_path: Path, point: str) -> None:
    job = Poison(tmp_path, "fail")
    job.run(kill_at=point)
    assert f"{BAD[1]} is bad" in job.run(status=1).errors
    job.assert_exact(job.elements[: poison_job.MANY])
    job.run("--mended")
    job.assert_exact(job.elements)


@pytest.mark.parametrize(
    "point", with_examples(["before-manifest", "after-manifest"], ("before-manifest",))
)
def test_they_are_skipped(tmp_path: Path, point: str) -> None:
    job = Poison(tmp_path, "skip")
    job.run(kill_at=f"{point}:2")
    job.run()
    job.assert_exact([each for each in job.elements if each[1] not in BAD])


@pytest.mark.parametrize("point", with_examples(POINTS, ("between-sink-commits",)))
def test_they_become_dead_letters_and_are_fed_back(tmp_path: Path, point: str) -> None:
    job = Poison(tmp_path, "dead_letter")
    job.run(kill_at=f"{point}:2")
    job.run()
    job.assert_exact([each for each in job.elements if each[1] not in BAD])
    letters = job.rows("letters")
    assert sorted(row["error"] for row in letters) == sorted(f"ValueError: {n} is bad" for n in BAD)
    assert job.redrive()["given"] == len(BAD)
    job.run("--mended", kill_at=POINTS[point])
    job.run("--mended")
    assert job.redrive()["before"] == len(BAD)
    job.run("--mended")
    job.assert_exact(job.elements)
    assert job.rows("letters") == letters
