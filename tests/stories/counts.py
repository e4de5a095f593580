"""The job of the stories: gives every event of a user its number, 1, 2, 3 and so on.

It runs on Spark, or without a JVM if the variable COUNTS_ENGINE is "local".
"""

from __future__ import annotations

import argparse
import logging
import os

from turnback import (
    FileSink,
    KeyedProcessFunction,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)


class Count(KeyedProcessFunction):
    count = ValueStateDescriptor("count", int)

    def process_element(self, event, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield Row(event.user, self.count.value())


def environment() -> StreamExecutionEnvironment:
    if os.environ.get("COUNTS_ENGINE") != "local":
        return StreamExecutionEnvironment.get_execution_environment()
    from turnback.testing import LocalEngine

    return StreamExecutionEnvironment(engine=LocalEngine())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("events")
    parser.add_argument("out")
    parser.add_argument("--kinds", action="store_true", help="count by kind as well")
    parser.add_argument("--without-users", action="store_true")
    parser.add_argument("--uid", default="users", help="of the operator that counts users")
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--bounded", action="store_true")
    parser.add_argument("--db-password", help="logged, as part of a URL")
    args = parser.parse_args()

    env = environment()
    env.enable_checkpointing("300 ms")
    events = env.from_files(
        args.events, "json", "user string, kind string", uid="events", max_files_per_epoch=1
    )
    if args.db_password:
        logger = logging.getLogger("turnback.counts")
        logger.warning("connecting to postgres://me:%s@db/shop", args.db_password)
    if args.fail:
        raise RuntimeError("the script is broken")
    if not args.without_users:
        users = events.key_by("user").process(Count(), output_type="key string, n bigint")
        users.uid(args.uid).sink_to(FileSink(f"{args.out}/users", "json")).uid("user counts")
    if args.kinds:
        named = events.map(
            lambda e: Row(e.kind, e.kind), output_type="user string, kind string"
        ).uid("kind first")
        kinds = named.key_by("user").process(Count(), output_type="key string, n bigint")
        kinds.uid("kinds").sink_to(FileSink(f"{args.out}/kinds", "json")).uid("kind counts")
    print("the script says hello", flush=True)
    env.execute("counts", bounded=args.bounded)


if __name__ == "__main__":
    main()
