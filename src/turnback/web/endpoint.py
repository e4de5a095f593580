"""One entry of the API: what it is called with, what it answers, who does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.datastructures import QueryParams

from turnback.core.errors import ConfigurationError
from turnback.core.ids import check_job_name
from turnback.inspect.job import Job
from turnback.web.errors import Refusal
from turnback.web.model import Body
from turnback.web.site import Site

_MAX_TEXT = 4_000


@dataclass(frozen=True)
class Parameter:
    """A parameter in the query of a request.

    Attributes:
        name: Its name.
        doc: What it is.
        type: Text or a whole number.
        required: Whether it must be there.
        least: The least number allowed.
        most: The greatest number allowed.
        default: The number that is taken if it is left out.
    """

    name: str
    doc: str
    type: type[str] | type[int] = str
    required: bool = False
    least: int = 1
    most: int = 1_000
    default: int | None = None

    def read(self, text: str | None) -> str | int | None:
        """Return the value in a request.

        Raises:
            Refusal: It is missing or cannot be used.
        """
        if text is None or (text == "" and self.required):
            if self.required:
                raise Refusal(400, f"the parameter {self.name!r} is missing: {self.doc}")
            return self.default
        if self.type is str:
            if len(text) > _MAX_TEXT or "\0" in text:
                raise Refusal(400, f"the parameter {self.name!r} is too long or holds a NUL")
            return text
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise Refusal(400, f"the parameter {self.name!r} is a whole number, not {text[:40]!r}")
        if not self.least <= int(text) <= self.most:
            raise Refusal(
                400, f"the parameter {self.name!r} is from {self.least} to {self.most}, not {text}"
            )
        return int(text)


@dataclass(frozen=True)
class Call:
    """One call of an endpoint.

    Attributes:
        site: What is served.
        path: Names in the path, decoded.
        query: Parameters, checked.
        body: What was posted, checked.
        authorized: Whether the token was shown.
    """

    site: Site
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    authorized: bool = False

    @cached_property
    def job(self) -> Job:
        """The job that the path names: looked up by its name, never as a path."""
        try:
            name = check_job_name(self.path["job"])
        except ConfigurationError as error:
            raise Refusal(400, str(error)) from error
        return self.site.jobs.get(name)


@dataclass(frozen=True)
class Endpoint:
    """An entry of the API.

    Attributes:
        method: GET or POST.
        path: Below the API's root; names in braces.
        doc: What it does, in a sentence.
        answer: The type of its answer.
        handle: Does it, in a thread of its own.
        query: Its parameters.
        body: The type of what is posted.
        status: Of a success.
    """

    method: str
    path: str
    doc: str
    answer: Any
    handle: Callable[[Call], Any]
    query: tuple[Parameter, ...] = ()
    body: type[Body] | None = None
    status: int = 200

    @property
    def names(self) -> list[str]:
        """The names in its path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    def read_query(self, given: QueryParams) -> dict[str, str | int | None]:
        """Return the parameters of a request.

        Raises:
            Refusal: One is unknown, missing, repeated or cannot be used.
        """
        known = {parameter.name for parameter in self.query}
        for name, _ in given.multi_items():
            if name not in known:
                listed = ", ".join(sorted(known)) or "none"
                raise Refusal(400, f"unknown parameter {name[:40]!r}; there are: {listed}")
            if len(given.getlist(name)) > 1:
                raise Refusal(400, f"the parameter {name!r} is there more than once")
        return {p.name: p.read(given.get(p.name)) for p in self.query}


def decoded(segment: str) -> str:
    """Return the text of one percent-encoded segment of a path.

    Raises:
        Refusal: It is no UTF-8, or holds a NUL.
    """
    try:
        text = unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(400, "the address is not encoded as UTF-8") from error
    if "\0" in text:
        raise Refusal(400, "the address holds a NUL")
    return text
