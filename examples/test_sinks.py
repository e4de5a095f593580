"""How to test a sink of your own: play every crash of the protocol, and read what readers see."""

import itertools
import json
import sqlite3
from contextlib import closing

from sinks import LatestScores, ScoreFiles, ScoreLog

from turnback.testing import check_sink

SCORES = "player string, score bigint"
ELEMENTS = [("ann", 1), ("bob", 2), ("cy", 3), ("dee", 4)]


def rows(database, query):
    with closing(sqlite3.connect(database)) as db:
        return db.execute(query).fetchall()


def test_latest_scores(tmp_path):
    number = itertools.count()
    report = check_sink(
        lambda: LatestScores(f"{tmp_path}/{next(number)}.db"),
        lambda sink: rows(sink.database, "select player, score from latest"),
        type=SCORES,
        elements=ELEMENTS,
        update=(("ann", 1), ("ann", 2)),
    )
    print(report)


def test_score_log(tmp_path):
    number = itertools.count()
    check_sink(
        lambda: ScoreLog(f"{tmp_path}/{next(number)}.db"),
        lambda sink: rows(sink.database, "select player, score from scores"),
        type=SCORES,
        elements=ELEMENTS,
    )


def test_score_files(tmp_path):
    def read(sink):
        texts = [path.read_text() for path in sink.visible.iterdir()]
        return [json.loads(line) for text in texts for line in text.splitlines()]

    number = itertools.count()
    check_sink(
        lambda: ScoreFiles(tmp_path / str(next(number))), read, type=SCORES, elements=ELEMENTS
    )
