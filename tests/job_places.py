"""What the files of a job directory are, for whoever counts requests about them."""

import re

PLACES = (
    (re.compile(r"checkpoints/chk-[0-9]+\.json"), "checkpoint log"),
    (re.compile(r"checkpoints/committed-.*"), "commit record"),
    (re.compile(r"state/[0-9]+/order-.*"), "commands"),
    (re.compile(r"state/.*"), "state files"),
    (re.compile(r"offsets/.*"), "positions of sources"),
    (re.compile(r"sinks/[^/]+/staged/.*"), "staged output"),
    (re.compile(r"sinks/.*"), "records of sinks"),
    (re.compile(r"(status|throughput|replays|program|job)\.json"), r"\1.json"),
    (re.compile(r"(history|ops|alerts|attempts|redrive|restoring|checkpoints)(/.*)?"), r"\1/"),
)
"""What a path in a job directory is."""

PER_EPOCH = (
    *("checkpoint log", "checkpoints/", "commit record", "commands", "state files"),
    *("positions of sources", "staged output", "records of sinks"),
)
"""Places whose requests follow from epochs and checkpoints; those of others follow the clock."""


def place_of(path: str) -> str:
    """What a path in a job directory is."""
    for pattern, name in PLACES:
        match = pattern.fullmatch(path)
        if match is not None:
            return match.expand(name)
    return path or "everything"
