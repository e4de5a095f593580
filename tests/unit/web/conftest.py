import pytest
from web_support import Browser, World


class _Kept:
    """A world takes a while to build: it is used again until a test has changed it."""

    world: World | None = None


@pytest.fixture
def world(tmp_path_factory):
    if _Kept.world is None:
        _Kept.world = World(tmp_path_factory.mktemp("world"))
    before = _files(_Kept.world)
    world, _Kept.world = _Kept.world, None
    yield world
    if _files(world) == before:
        _Kept.world = world


@pytest.fixture
def browser(world) -> Browser:
    return world.browser()


def _files(world: World) -> list[tuple[str, int, int]]:
    found = ((path, path.lstat()) for path in world.base.rglob("*"))
    return sorted((str(path), stat.st_mtime_ns, stat.st_size) for path, stat in found)
