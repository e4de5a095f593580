"""How to test a sink of your own: play every crash of the protocol, and read what readers see."""

import itertools
import json
import sqlite3
from contextlib import closing

import pytest
from sinks import LatestScores, ScoreFiles, ScoreLog

from turnback.errors import ConfigurationError
from turnback.sinks.base import CommitterContext, WriterContext
from turnback.testing import check_sink
from turnback.values.columns import Batch
from turnback.values.hints import as_type

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


def test_latest_scores_of_a_job_that_takes_over(tmp_path):
    scores = LatestScores(f"{tmp_path}/scores.db")
    type = as_type(SCORES)

    def driver(job, attempt, **changes):
        where = (tmp_path / job).as_uri()
        return CommitterContext(job, f"{job}-1", "out", attempt, type, where, **changes)

    def task(job, attempt):
        where = driver(job, attempt).directory_id
        return WriterContext(job, f"{job}-1", "out", attempt, 1, 0, 0, type, directory_id=where)

    def score(job, attempt, points):
        writer = scores.writer(task(job, attempt))
        writer.write(Batch(type, [("ann", points)]))
        writer.prepare()
        return rows(scores.database, "select player, score from latest")

    scores.acquire_target(driver("old", 5))
    assert score("old", 5, 1) == [("ann", 1)]
    with pytest.raises(ConfigurationError, match="belongs to job 'old'"):
        scores.check_target(driver("new", 0))
    scores.acquire_target(driver("new", 0, take_over=True))
    scores.acquire_target(driver("new", 1))
    # Its attempts are fewer, and it owns the table.
    assert score("new", 1, 2) == [("ann", 2)]
    with pytest.raises(ConfigurationError, match="job 'new' has taken"):
        score("old", 5, 3)
    assert rows(scores.database, "select score from latest") == [(2,)]


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
