"""`python -m simulation --seeds 2000`, or `--seed N` to play one again and read its story."""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow

from simulation.files import Directory
from simulation.plants import PLANTS
from simulation.run import play


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="play this one, and print its story")
    parser.add_argument("--processes", type=int, default=1, help="how many share the seeds")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="a defect to plant")
    parser.add_argument("--sinks", default="", help="only these, such as postgres,files")
    parser.add_argument("--serve", action="store_true", help="do what lines of JSON ask for")
    options = parser.parse_args(arguments)
    if options.serve:
        serve()
        return 0
    pyarrow.set_cpu_count(1)  # threads for batches of a few rows take half of the time
    gc.freeze()  # what was imported is not searched again and again
    gc.set_threshold(20_000, 20, 100)
    if options.seed is not None:
        run = play(options.seed, options.plant, kinds_of(options))
        print("\n".join(run.world.story))
        return 0
    started = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    shares = [Share(seeds[i :: options.processes], options) for i in range(options.processes)]
    if len(shares) == 1:
        played, failed = shares[0].play()
    else:
        played, failed = in_processes(shares)
    seconds = time.monotonic() - started
    print(f"{played} seeds in {seconds:.1f} s, failed: {failed or 'none'}")
    return 1 if failed else 0


def kinds_of(options: argparse.Namespace) -> list[str]:
    return options.sinks.split(",") if options.sinks else []


@dataclass
class Share:
    """The seeds of one process."""

    seeds: range
    options: argparse.Namespace
    is_over: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 1))
    """Whether some process has met a failure that ends them all."""

    def play(self) -> tuple[int, list[int]]:
        """Play until a seed fails, or all; returns how many were played, and those that failed."""
        options = self.options
        kinds = kinds_of(options)
        failed = []
        played = 0
        for seed in self.seeds:
            if self.is_over[0]:
                break
            played += 1
            try:
                play(seed, options.plant, kinds)
            except Exception as error:  # noqa: BLE001 - reported
                failed.append(seed)
                traceback.print_exception(error)
                plant = f"--plant {options.plant} " if options.plant else ""
                sinks = f"--sinks {options.sinks} " if options.sinks else ""
                again = f"python -m simulation {plant}{sinks}--seed {seed}"
                print(f"seed {seed} failed; again: {again}", flush=True)
                if not options.keep_going:
                    self.is_over[0] = 1
        return played, failed


def in_processes(shares: Sequence[Share]) -> tuple[int, list[int]]:
    """Play each share in a process of its own."""
    is_over = shares[0].is_over
    pool = multiprocessing.get_context("fork")
    results: Any = pool.SimpleQueue()

    def run(share: Share) -> None:
        try:
            results.put(share.play())
        finally:
            Directory.remove()

    processes = [
        pool.Process(target=run, args=(replace(share, is_over=is_over),)) for share in shares
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    parts = [results.get() for process in processes if process.exitcode == 0]
    if len(parts) < len(shares):
        raise SystemExit("a process has died")
    return sum(played for played, _ in parts), sorted(seed for _, some in parts for seed in some)


def serve() -> None:
    """Run each list of arguments in a process of its own, which need not import all this again."""
    for line in sys.stdin:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if child == 0:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                code = 3
                try:
                    code = main(json.loads(line))
                except BaseException as error:  # noqa: BLE001 - told to whoever asked
                    traceback.print_exception(error)
                finally:
                    Directory.remove()
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            texts = [file.seek(0) or file.read().decode() for file in (out, err)]
        print(json.dumps([os.waitstatus_to_exitcode(status), *texts]), flush=True)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets differs between processes otherwise, and with it the run.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
