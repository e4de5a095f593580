"""Defects of the Redis sink to plant, see `plants`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from msgspec.structs import replace

from turnback.connectors import redis as redis_sink
from turnback.connectors.redis import RedisSink


def _edited(old: str, new: str) -> Any:
    """Both scripts that write, with something else in them."""
    patches = ExitStack()
    for name in ("_SET_HASHES", "_SET_STRINGS"):
        script = getattr(redis_sink, name)
        assert old in script
        patches.enter_context(mock.patch.object(redis_sink, name, script.replace(old, new)))
    return patches


def _versions_are_not_compared() -> Any:
    return _edited("if not is_newer(", "if true or not is_newer(")


def _owners_are_not_compared() -> Any:
    """Whoever has lost the keys goes on writing."""
    return _edited("if claim ~= '' and not (note", "if claim == 'no' and not (note")


def _a_stray_task_takes_a_new_claim_for_its_own() -> Any:
    patches = _edited("> attempt then return -1", "> attempt + 99 then return -1")
    patches.enter_context(
        mock.patch.object(RedisSink, "_require_newest", lambda self, owner, ctx: None)
    )
    return patches


def _a_restored_job_keeps_its_claim() -> Any:
    """It counts its attempts again, under the claim of those it has forgotten."""
    honest = RedisSink._new_owner

    def new_owner(self: Any, owner: Any, ctx: Any) -> Any:
        mine = honest(self, owner, ctx)
        if owner is None or owner.directory != mine.directory:
            return mine
        return replace(mine, claim=owner.claim)

    return mock.patch.object(RedisSink, "_new_owner", new_owner)


LAYOUTS = ("redis", "redis-string")
REDIS_PLANTS: dict[str, Callable[[], Any]] = {
    "redis-no-version": _versions_are_not_compared,
    "redis-no-owner": _owners_are_not_compared,
    "redis-stray-claims": _a_stray_task_takes_a_new_claim_for_its_own,
    "redis-restored-claim": _a_restored_job_keeps_its_claim,
}
