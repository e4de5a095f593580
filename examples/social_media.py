"""Views and clicks per post, from a stream of event files. Kill it whenever you like."""

import sys

from turnback import (
    FileSink,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)


class Totals(KeyedProcessFunction):
    views = ValueStateDescriptor("views", int)
    clicks = ValueStateDescriptor("clicks", int)

    def process_element(self, event, ctx):
        views, clicks = self.views.value() or 0, self.clicks.value() or 0
        if event.kind == "view":
            views += 1
            self.views.update(views)
        else:
            clicks += 1
            self.clicks.update(clicks)
        yield event.post, views, clicks


class Activity(KeyedProcessFunction):
    events = ValueStateDescriptor("events", int)

    def process_element(self, event, ctx):
        events = (self.events.value() or 0) + 1
        self.events.update(events)
        yield event.kind, events


def main(events: str, out: str, jobs: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(root=jobs)
    env.enable_checkpointing("200 ms")
    stream = env.from_files(
        events, "json", "post string, kind string", uid="events", max_files_per_epoch=1
    )
    totals = stream.key_by("post").process(
        Totals(), output_type="post string, views bigint, clicks bigint"
    )
    totals.uid("totals").sink_to(FileSink(f"{out}/totals", "json")).uid("dashboard")
    activity = stream.key_by("kind").process(Activity(), output_type="kind string, events bigint")
    activity.uid("activity").sink_to(FileSink(f"{out}/activity", "json")).uid("activity board")
    env.execute("social-media")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python social_media.py EVENTS OUT JOBS")
    main(*sys.argv[1:])
