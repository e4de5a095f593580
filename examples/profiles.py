"""Clicks with the country of their user, which a service knows: many requests at a time.

    python examples/profiles.py clicks/ http://localhost:8000 countries/

`clicks` is a directory of JSON lines with `user` and `page`. The service answers
``GET /users/<user>`` with ``{"country": ...}``, and 404 for users it does not know.
"""

import sys
from typing import Any

import httpx

from turnback import AsyncDataStream, Duration, FileSink, StreamExecutionEnvironment
from turnback.functions import AsyncFunction, AsyncRetryStrategy

CLICK = "user string, page string"


class Profile(AsyncFunction):
    client: httpx.AsyncClient | None = None

    def __init__(self, service: str) -> None:
        self.service = service

    async def async_invoke(self, value: Any) -> list[Any]:
        self.client = self.client or httpx.AsyncClient(base_url=self.service)
        answer = await self.client.get(f"/users/{value.user}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return [(value.user, value.page, None)]
        answer.raise_for_status()
        return [(value.user, value.page, answer.json()["country"])]


def with_countries(clicks: Any, service: str) -> Any:
    retries = AsyncRetryStrategy.exponential_backoff(
        max_attempts=4,
        initial_delay=100,
        max_retry_delay=5_000,
        multiplier=2.0,
        result_predicate=None,
        exception_predicate=lambda error: isinstance(error, httpx.HTTPError),
    )
    timeout, capacity, type = Duration.of_seconds(30), 200, f"{CLICK}, country string"
    return AsyncDataStream.unordered_wait_with_retry(
        clicks, Profile(service), timeout, retries, capacity, type
    ).uid("countries")


def build(env: StreamExecutionEnvironment, clicks: str, service: str, out: str) -> None:
    stream = env.from_files(clicks, "json", CLICK, "clicks")
    with_countries(stream, service).sink_to(FileSink(out, "json")).uid("out")


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env, *sys.argv[1:4])
    env.execute("profiles", bounded=True)
