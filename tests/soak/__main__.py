"""`python -m soak`: kill the processes of a job for some minutes, and see whether it minds."""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from services.java import java_options
from soak.harness import Soak
from soak.place import Place
from soak.plan import Victim
from soak.servers import running_servers
from soak.summary import Summary


def soak(
    minutes: float,
    seed: int | None = None,
    without: tuple[Victim, ...] = (),
    *,
    servers: bool = False,
    report: Path | None = None,
    keep: bool = False,
) -> Summary:
    """Run a soak in a directory of its own, which is kept if something was wrong.

    Args:
        minutes: How long processes are killed.
        seed: From which everything follows; a new one if there is none.
        without: Processes that are not killed.
        servers: Whether the job runs on a cluster and writes to a database and a broker as well.
        report: Directory for the summary as JSON and Markdown.
        keep: Keep the directory in any case.
    """
    directory = Path(tempfile.mkdtemp(prefix="turnback-soak-"))
    chosen = secrets.randbelow(1_000_000) if seed is None else seed
    java = java_options()
    with running_servers(directory, java) if servers else nullcontext() as running:
        place = Place(directory / "soak", java, running)
        summary = Soak(place, chosen, without, lambda text: print(text, flush=True)).run(minutes)
    print(f"\n{summary.to_markdown()}", flush=True)
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)
        (report / "soak.json").write_text(summary.to_json() + "\n")
        (report / "soak.md").write_text(summary.to_markdown())
    if summary.violations or keep:
        print(f"everything is kept in {directory}", flush=True)
    else:
        shutil.rmtree(directory)
    return summary


def main() -> int:
    """Exit with 0 if there was no violation."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, help="repeat the records and the plan of another run")
    parser.add_argument(
        "--without",
        type=Victim,
        choices=list(Victim),
        action="append",
        default=[],
        help="never kill these processes; may be repeated",
    )
    parser.add_argument(
        "--servers",
        action="store_true",
        help="on a cluster, into a database and a broker as well, all of which are killed too",
    )
    parser.add_argument("--report", type=Path, help="directory for the summary")
    parser.add_argument("--keep", action="store_true", help="keep the directory of the run")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that all is cleaned up
    without = tuple(args.without)
    summary = soak(
        args.minutes,
        args.seed,
        without,
        servers=args.servers,
        report=args.report,
        keep=args.keep,
    )
    return 1 if summary.violations else 0


if __name__ == "__main__":
    sys.exit(main())
