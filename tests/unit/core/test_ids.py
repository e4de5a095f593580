import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnback.core.ids import (
    check_job_name,
    check_state_name,
    check_uid,
    path_segment,
    segment_name,
)
from turnback.errors import ConfigurationError, PlanError


@pytest.mark.parametrize("check", [check_uid, check_job_name, check_state_name])
@pytest.mark.parametrize(
    "name", ["a", "Zähler", "计数器", "👨‍👩‍👧", "a/b", "..", "a b", "x" * 200, "%2E", "C:\\", "~"]
)
def test_any_printable_name_is_allowed(check: object, name: str) -> None:
    assert check(name) == name  # type: ignore[operator]


@pytest.mark.parametrize(
    ("check", "error", "what"),
    [
        (check_uid, PlanError, "uid"),
        (check_state_name, PlanError, "state name"),
        (check_job_name, ConfigurationError, "job name"),
    ],
)
@pytest.mark.parametrize(
    "name", ["", "  ", "x" * 201, "a\nb", "a\0", "\x1b[2J", "a\u2028b", "\ud800", None, 7, b"a"]
)
def test_names_that_are_refused(check: object, error: type, what: str, name: object) -> None:
    with pytest.raises(error, match=what):
        check(name)  # type: ignore[operator]


SAFE = re.compile(r"(?!\.)[A-Za-z0-9._%~-]{1,180}")
NAMES = st.text(st.characters(), min_size=1, max_size=200)


@given(NAMES)
@example("..")
@example(".")
@example("...hidden")
@example("/etc/passwd")
@example("../../x")
@example("%2E%2E")
@example("\ud800")
@example("字" * 200)
@example("." * 200)
def test_a_segment_is_safe_and_reads_back(name: str) -> None:
    segment = path_segment(name)
    assert SAFE.fullmatch(segment), segment
    if "~" in segment:
        with pytest.raises(ConfigurationError, match="complete name"):
            segment_name(segment)
    else:
        assert segment_name(segment) == name


@given(NAMES, NAMES)
def test_different_names_have_different_segments(one: str, other: str) -> None:
    assert (path_segment(one) == path_segment(other)) == (one == other)


def test_long_names_differ_even_if_they_begin_alike() -> None:
    one, other = "ü" * 199 + "a", "ü" * 199 + "b"
    assert path_segment(one) != path_segment(other)
    assert path_segment(one).startswith("%C3%BC")
    # Cut between two encoded bytes, never within one.
    for length in range(150, 200):
        head = path_segment("a" + "ü" * length).split("~")[0]
        assert re.fullmatch(r"a(%[0-9A-F]{2})+", head)


def test_readable_names_stay_readable() -> None:
    assert path_segment("count-posts_v1.2") == "count-posts_v1.2"
    assert path_segment("a/b c") == "a%2Fb%20c"
    assert path_segment("..") == "%2E%2E"
    with pytest.raises(ConfigurationError, match="empty"):
        path_segment("")


@pytest.mark.parametrize("segment", ["", "..", "a/b", "%2e", "%zz", "%FF", "a~b", ".x"])
def test_foreign_segments_are_refused(segment: str) -> None:
    with pytest.raises(ConfigurationError):
        segment_name(segment)
