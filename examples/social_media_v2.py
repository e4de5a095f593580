"""Version 2: paid and organic numbers apart, since the day paid posts were launched.

It starts from the savepoint of that day. `totals` keeps its two states and has two more,
`engagement` is new, `activity` is gone, and there is more parallelism.
"""

import sys

from turnback import (
    FileSink,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

APART = (
    "post string, organic_views bigint, organic_clicks bigint, "
    "paid_views bigint, paid_clicks bigint"
)


def add(state):
    state.update((state.value() or 0) + 1)


class Totals(KeyedProcessFunction):
    views = ValueStateDescriptor("views", int)
    clicks = ValueStateDescriptor("clicks", int)
    paid_views = ValueStateDescriptor("paid views", int)
    paid_clicks = ValueStateDescriptor("paid clicks", int)

    def process_element(self, event, ctx):
        add(self.views if event.kind == "view" else self.clicks)
        if event.paid:
            add(self.paid_views if event.kind == "view" else self.paid_clicks)
        paid_views, paid_clicks = self.paid_views.value() or 0, self.paid_clicks.value() or 0
        views, clicks = self.views.value() or 0, self.clicks.value() or 0
        yield event.post, views - paid_views, clicks - paid_clicks, paid_views, paid_clicks


class Engagement(KeyedProcessFunction):
    """Clicks per hundred views of paid posts, times a weight to be tried out."""

    views = ValueStateDescriptor("views", int)
    clicks = ValueStateDescriptor("clicks", int)

    def __init__(self, weight):
        self.weight = weight

    def process_element(self, event, ctx):
        add(self.views if event.kind == "view" else self.clicks)
        views, clicks = self.views.value() or 0, self.clicks.value() or 0
        yield event.post, self.weight * 100 * clicks // max(views, 1)


def main(events: str, out: str, jobs: str, savepoint: str, name: str, weight: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(root=jobs)
    env.set_parallelism(3).enable_checkpointing("200 ms")
    stream = env.from_files(
        events,
        "json",
        "post string, kind string, paid boolean",
        uid="events",
        max_files_per_epoch=2,
    )
    totals = stream.key_by("post").process(Totals(), output_type=APART)
    totals.uid("totals").sink_to(FileSink(f"{out}/totals", "json")).uid("dashboard")
    paid = stream.filter(lambda event: event.paid).uid("only paid").key_by("post")
    score = paid.process(Engagement(int(weight)), output_type="post string, score bigint")
    score.uid("engagement").sink_to(FileSink(f"{out}/engagement", "json")).uid("scores")
    env.execute(name, start_from=savepoint, fork=True, allow_non_restored_state=["activity"])


if __name__ == "__main__":
    if len(sys.argv) != 7:
        sys.exit("usage: python social_media_v2.py EVENTS OUT JOBS SAVEPOINT NAME WEIGHT")
    main(*sys.argv[1:])
