"""The events of the demo, and what any correct program must make of them."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

POSTS = ("cat video", "launch day", "recipe", "road trip", "sunset", "team photo", "unboxing")
EVENTS_PER_FILE = 1_000

Counts = tuple[int, int, int, int]
"""Organic views and clicks, paid views and clicks."""


class Truth:
    """Writes files of events and remembers what was in them."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.seen: Counter[tuple[str, str, bool]] = Counter()
        self.count = 0
        self._before_launch: int | None = None
        self._files = 0
        self._random = random.Random(7)

    def write(self, files: int, *, paid: bool) -> None:
        """Write files of events; with the first paid ones, paid posts are launched."""
        if paid and self._before_launch is None:
            self._before_launch = self.count
        for _ in range(files):
            events = [self._event(paid) for _ in range(EVENTS_PER_FILE)]
            self.seen.update((e["post"], e["kind"], e["paid"]) for e in events)
            self.count += len(events)
            path = self.directory / f"{self._files:03d}.json"
            hidden = path.with_name(f".{path.name}")
            hidden.write_text("\n".join(json.dumps(e) for e in events))
            hidden.rename(path)
            self._files += 1

    def since_launch(self) -> int:
        """How many events there were since paid posts were launched."""
        return self.count - (self._before_launch or 0)

    def _event(self, paid: bool) -> dict[str, Any]:
        return {
            "post": self._random.choice(POSTS),
            "kind": self._random.choices(("view", "click"), (4, 1))[0],
            "paid": paid and self._random.random() < 0.4,
        }


def apart(truth: Truth, post: str) -> Counts:
    """The true counts of a post."""
    seen = truth.seen
    return (
        seen[post, "view", False],
        seen[post, "click", False],
        seen[post, "view", True],
        seen[post, "click", True],
    )


def newest(rows: list[dict[str, Any]]) -> dict[str, Counts]:
    """The newest counts of every post among the rows of a dashboard: counts only grow."""
    found: dict[str, Counts] = {}
    for row in rows:
        post, *counts = row.values()
        found[post] = max(found.get(post, (0, 0, 0, 0)), tuple(counts), key=sum)
    return found
