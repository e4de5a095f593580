"""The job that crash tests run, as a process of its own: see `job.py --help`.

Two keyed levels with state and a sink after each. Elements are numbered within their key, so that
a reader of the output can name every gap and every duplicate:

    files -> key_by(key) -> Sequence -> <output>/sequence (parquet)
                               |
                               +-> key_by(team) -> Tally -> <output>/tally (json)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import sys
import time
from pathlib import Path

from turnback import (
    FileSink,
    KeyedProcessFunction,
    MapStateDescriptor,
    RestartStrategies,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from turnback.api import environment as environment_module
from turnback.driver import service
from turnback.spark.session import spark_session
from turnback.testing import LocalEngine

SCHEMA = "key string, seq bigint, team string"
SEQUENCE = "key string, seq bigint, previous bigint, count bigint, team string"
TALLY = "team string, key string, seq bigint, previous bigint, n bigint"


class Trouble:
    """What the test wants to happen while one certain element is processed.

    Args:
        key: The element's key.
        seq: Its number.
        slow: A file to create before the element is held up for a while; only by the first to
            come. It says which process it was.
        fail: Likewise, before an exception.
    """

    def __init__(self, key: str, seq: int, slow: str | None, fail: str | None) -> None:
        self._at = (key, seq)
        self._slow, self._fail = slow, fail

    def __call__(self, key: str, seq: int) -> None:
        """Pass an element."""
        if (key, seq) != self._at:
            return
        if self._slow and first(self._slow):
            hold_up(Path(f"{self._slow}-no-longer"))
        if self._fail and first(self._fail):
            raise RuntimeError("this element fails once")


def hold_up(enough: Path) -> None:
    """Wait for twenty seconds, or until a file is there."""
    end = time.monotonic() + 20
    while time.monotonic() < end and not enough.exists():
        time.sleep(0.02)


def first(marker: str) -> bool:
    """Say whether nobody was here before; leave the number of this process."""
    mine = Path(f"{marker}.{os.getpid()}")
    mine.write_text(str(os.getpid()))
    try:
        os.link(mine, marker)  # whoever sees the marker can read it
    except FileExistsError:
        return False
    return True


class Sequence(KeyedProcessFunction):
    """Adds what the state of the key says came before."""

    last = ValueStateDescriptor("last", int)
    count = ValueStateDescriptor("count", int)

    def __init__(self, trouble: Trouble | None) -> None:
        self._trouble = trouble

    def process_element(self, value, ctx):
        """Number the element."""
        if self._trouble:
            self._trouble(value.key, value.seq)
        previous, count = self.last.value(), (self.count.value() or 0) + 1
        self.last.update(value.seq)
        self.count.update(count)
        yield Row(value.key, value.seq, -1 if previous is None else previous, count, value.team)


class Tally(KeyedProcessFunction):
    """Numbers the elements of a team, and remembers the last one of each member."""

    last = MapStateDescriptor("last", str, int)
    n = ValueStateDescriptor("n", int)

    def __init__(self, trouble: Trouble | None) -> None:
        self._trouble = trouble

    def process_element(self, value, ctx):
        """Number the element."""
        if self._trouble:
            self._trouble(value.key, value.seq)
        previous = self.last.get(value.key)
        n = (self.n.value() or 0) + 1
        self.last.put(value.key, value.seq)
        self.n.update(n)
        yield Row(value.team, value.key, value.seq, -1 if previous is None else previous, n)


def main() -> int:
    """Run the job; the last line on standard output is a report in JSON."""
    args = arguments()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    if args.kill_driver:
        # A kill point inside a task then ends this process; workers inherit the environment.
        os.environ["TURNBACK_KILL_PID"] = str(os.getpid())
    env = environment(args)
    build(env, args)
    if args.gate:
        wait_for(Path(args.gate))
    start = args.start_from
    start = int(start) if start and start.isdigit() else start
    if args.resumed:
        be_resumed()
    if args.poll:
        service._POLL_S = args.poll
    client = env.execute_async(
        "crash", bounded=True, start_from=start, epoch_interval=args.epoch_interval
    )
    try:
        client.result()
        error = None
    except Exception as e:  # noqa: BLE001 - told in the report
        error = e
    tell(client.report, error)
    return 0 if error is None else 1


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--local", help="where local state stores go")
    parser.add_argument("--spark", action="store_true", help="else without a JVM")
    parser.add_argument("--epoch-interval", type=int, default=50, help="in ms, without Spark")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[], help="a Spark setting, key=value")
    parser.add_argument("--backend", default="rocksdb")
    parser.add_argument("--interval", type=int, default=10, help="of checkpoints, in ms")
    parser.add_argument("--retain", type=int, default=1)
    parser.add_argument("--files", type=int, default=1, help="how many make an epoch")
    parser.add_argument("--sinks", type=int, choices=(1, 2), default=2)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--start-from")
    parser.add_argument("--resumed", action="store_true", help="as started by a supervisor")
    parser.add_argument("--poll", type=float, help="look for requests so rarely, in seconds")
    parser.add_argument("--kill-driver", action="store_true", help="also from points in tasks")
    parser.add_argument("--gate", help="start the job when this file is there")
    parser.add_argument("--at", default=":-1", help="the element at which there is trouble")
    parser.add_argument("--where", choices=("sequence", "tally"), default="sequence")
    parser.add_argument("--slow", help="hold it up once; the file says where")
    parser.add_argument("--fail", help="fail on it once; the file says where")
    return parser.parse_args()


def environment(args: argparse.Namespace) -> StreamExecutionEnvironment:
    """The settings of the job."""
    local = {"state.backend.local-dir": args.local} if args.local else {}
    if args.spark:
        spark = spark_session(args.master, **dict(c.split("=", 1) for c in args.conf))
        env = StreamExecutionEnvironment(spark, args.root, local)
    else:
        env = StreamExecutionEnvironment(None, args.root, local, engine=LocalEngine())
    env.set_parallelism(2).set_state_backend(args.backend).enable_checkpointing(args.interval)
    env.get_checkpoint_config().set_num_retained_checkpoints(args.retain)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(args.restarts, 100))
    return env


def build(env: StreamExecutionEnvironment, args: argparse.Namespace) -> None:
    """The program."""
    key, _, seq = args.at.rpartition(":")
    trouble = dict.fromkeys(("sequence", "tally"))
    trouble[args.where] = Trouble(key, int(seq), args.slow, args.fail)
    events = env.from_files(
        args.input, "json", SCHEMA, uid="events", max_files_per_epoch=args.files
    )
    numbered = events.key_by("key").process(Sequence(trouble["sequence"]), SEQUENCE).uid("sequence")
    numbered.sink_to(FileSink(Path(args.output) / "sequence", "parquet")).uid("to-sequence")
    if args.sinks > 1:
        tally = numbered.key_by("team").process(Tally(trouble["tally"]), TALLY).uid("tally")
        tally.sink_to(FileSink(Path(args.output) / "tally", "json")).uid("to-tally")


def be_resumed() -> None:
    """Let the job go on as one whose driver died and was started again by its supervisor."""
    real = environment_module.job_spec

    def job_spec(*args, **more):
        return dataclasses.replace(real(*args, **more), resumed=True)

    environment_module.job_spec = job_spec


def wait_for(gate: Path) -> None:
    """Say that all is ready, and wait for permission to start the job."""
    gate.with_suffix(".ready").touch()
    while not gate.exists():
        time.sleep(0.002)


def tell(report, error: Exception | None) -> None:
    """Print what happened."""
    told = {
        "attempts": report.attempts,
        "checkpoints": report.checkpoints,
        "restored_from": report.restored_from,
        "epochs": [e.number for e in report.epochs],
        "found": report.openings,
        "error": None if error is None else type(error).__name__,
        "message": None if error is None else str(error),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    sys.exit(main())
