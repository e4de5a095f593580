"""The page on databases shows a program that works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from services import mariadb as mariadb_service
from services import postgres as postgres_service
from services import redis as redis_service
from services.mariadb import MariaDbServer
from services.postgres import PostgresServer
from services.redis import RedisServer
from turnback import StreamExecutionEnvironment
from turnback.testing import LocalEngine

PAGE = Path(__file__).parents[3] / "docs" / "databases.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_program_of_the_page(
    postgres: PostgresServer,
    mariadb: MariaDbServer,
    redis: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = StreamExecutionEnvironment(None, str(tmp_path / "jobs"), {}, engine=LocalEngine())
    monkeypatch.setattr(StreamExecutionEnvironment, "get_execution_environment", lambda: env)
    monkeypatch.setenv("SHOP_PASSWORD", postgres_service.PASSWORD)
    monkeypatch.setenv("MARIADB_PASSWORD", mariadb_service.PASSWORD)
    (tmp_path / "likes").mkdir()
    likes = [{"post": p, "user": "ann", "at": "2026-01-31T12:00:00Z"} for p in ("a", "b", "a")]
    (tmp_path / "likes" / "1.json").write_text("\n".join(map(json.dumps, likes)))
    here = {
        '"likes", "json"': f'"{tmp_path}/likes", "json"',
        '"host=db dbname=shop user=turnback"': f'"{postgres.dsn}"',
        '"db",\n        database': f'"127.0.0.1", {mariadb.port},\n        database',
        '"redis://cache:6379/0"': f'"redis://:{redis_service.PASSWORD}@127.0.0.1:{redis.port}/0"',
    }
    add, keep_one = blocks("sql")
    postgres.run("DROP TABLE IF EXISTS likes", add)
    mariadb.run("DROP TABLE IF EXISTS like_counts", keep_one)
    program = "\n".join(blocks("python"))
    for shown, real in here.items():
        assert program.count(shown) == 1, shown
        program = program.replace(shown, real)
    first, mysql, last = program.partition("        user=")
    program = first + mysql + last.replace("SHOP_PASSWORD", "MARIADB_PASSWORD")
    names: dict[str, Any] = {}
    exec(compile(program, PAGE, "exec"), names)
    env.execute("likes", bounded=True)
    assert postgres.query("SELECT post, \"user\" FROM likes ORDER BY post") == [
        ("a", "ann"), ("a", "ann"), ("b", "ann"),
    ]  # fmt: skip
    assert mariadb.query("SELECT post, n FROM like_counts ORDER BY post") == [("a", 2), ("b", 1)]
    with redis.connect() as client:
        assert client.hget("likes:a", "n") == b"2"
