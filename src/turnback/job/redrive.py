"""Dead letters that were given back to a job: batches in its directory that wait to be fed.

redrive/<job id>/<n>.json          some letters; written once, the first writer wins
redrive/<job id>/<n>.outcome.json  what became of them; written anew when they are fed again

A checkpoint knows how many batches are in it. Whatever comes after them is fed by the driver,
one batch in an epoch, so each is in it or not, as a whole.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence

import msgspec

from turnback.core.clock import Clock, SystemClock
from turnback.errors import AlreadyExistsError, CorruptFileError, NotFoundError
from turnback.plan.bad_records import LetterId, decode_letter
from turnback.storage.base import Storage, put_if_absent_or_same
from turnback.storage.envelope import encode_document, read_document

DIRECTORY = "redrive"
FORMAT = 1
MOST_LETTERS = 5_000
MOST_BYTES = 4 << 20
"""What a batch holds at most, but always a letter: an epoch takes all of it."""
_BATCH = "redrive-batch"
_OUTCOME = "redrive-outcome"
_FILE = re.compile(r".*/([1-9][0-9]*)\.json")


class RedriveBatch(msgspec.Struct, frozen=True):
    """Some dead letters, as they are written; `nonce` tells who gave them back."""

    created_ms: int
    nonce: str
    letters: tuple[bytes, ...]


class RedriveOutcome(msgspec.Struct, frozen=True):
    """What became of a batch.

    Attributes:
        fed: How many letters were fed back.
        coming: How many were not, because the job was turned back to a time before them: their
            elements come again from the sources.
        refused: Why others were not, and which ones, by their place in the batch.
    """

    fed: int = 0
    coming: int = 0
    refused: dict[str, tuple[int, ...]] = {}


class RedriveInbox:
    """The batches of one job."""

    def __init__(self, storage: Storage, job_id: str, clock: Clock | None = None) -> None:
        self._storage = storage
        self._directory = f"{DIRECTORY}/{job_id}"
        self._clock = clock or SystemClock()

    def numbers(self) -> list[int]:
        matches = map(_FILE.fullmatch, self._storage.list(self._directory))
        return sorted(int(match[1]) for match in matches if match)

    def has(self, number: int) -> bool:
        """Whether there is a batch of this number."""
        try:
            self._storage.get(self._path(number))
        except NotFoundError:
            return False
        return True

    def batch(self, number: int) -> RedriveBatch:
        path = self._path(number)
        found = read_document(self._storage, _BATCH, FORMAT, path, RedriveBatch)
        if found is None:
            raise CorruptFileError(f"{self._storage.uri}/{path} is missing; restore it")
        return found

    def outcome(self, number: int) -> RedriveOutcome | None:
        """What became of a batch; None if it has not been fed yet."""
        path = self._outcome_path(number)
        return read_document(self._storage, _OUTCOME, FORMAT, path, RedriveOutcome)

    def write_outcome(self, number: int, outcome: RedriveOutcome) -> None:
        self._storage.put(self._outcome_path(number), encode_document(_OUTCOME, FORMAT, outcome))

    def known(self, numbers: Iterable[int]) -> set[LetterId]:
        """The letters of some batches, without those that were refused."""
        found: set[LetterId] = set()
        for number in numbers:
            outcome = self.outcome(number) or RedriveOutcome()
            refused = {place for places in outcome.refused.values() for place in places}
            letters = enumerate(self.batch(number).letters)
            found |= {decode_letter(data).id for place, data in letters if place not in refused}
        return found

    def add(self, letters: Sequence[bytes]) -> list[int]:
        """Give letters back that have not been given back yet; return the numbers of batches.

        Safe to call again, and by several at the same time.
        """
        while True:
            numbers = self.numbers()
            known = self.known(numbers)
            new = {id: data for data in letters if (id := decode_letter(data).id) not in known}
            if not new:
                return []
            first = numbers[-1] + 1 if numbers else 1
            written = []
            try:
                for number, some in enumerate(_batches(new.values()), first):
                    batch = RedriveBatch(self._clock.now_ms(), secrets.token_hex(8), tuple(some))
                    put_if_absent_or_same(
                        self._storage, self._path(number), encode_document(_BATCH, FORMAT, batch)
                    )
                    written.append(number)
            except AlreadyExistsError:
                continue  # somebody else gives letters back, the same ones maybe
            return written

    def _path(self, number: int) -> str:
        return f"{self._directory}/{number}.json"

    def _outcome_path(self, number: int) -> str:
        return f"{self._directory}/{number}.outcome.json"


def _batches(letters: Iterable[bytes]) -> Iterable[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for letter in letters:
        if batch and (len(batch) == MOST_LETTERS or size + len(letter) > MOST_BYTES):
            yield batch
            batch = []
            size = 0
        batch.append(letter)
        size += len(letter)
    if batch:
        yield batch
