"""Batches of dead letters that wait in a job's directory."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from turnback.errors import ConfigurationError, CorruptFileError
from turnback.job import redrive
from turnback.job.redrive import RedriveInbox, RedriveOutcome
from turnback.plan.bad_records import decode_letter
from turnback.storage.local import LocalStorage
from unit.letter_support import letter


@pytest.fixture
def inbox(tmp_path):
    return RedriveInbox(LocalStorage(tmp_path), "j")


def test_each_letter_is_taken_once(inbox):
    assert inbox.add([letter(1), letter(2), letter(2)]) == [1]
    assert inbox.add([letter(2), letter(1)]) == []
    assert inbox.add([letter(2), letter(3)]) == [2]
    assert [*map(inbox.batch, inbox.numbers())][1].letters == (letter(3),)


def test_one_that_was_refused_may_be_given_again(inbox):
    inbox.add([letter(1), letter(2)])
    inbox.write_outcome(1, RedriveOutcome(fed=1, refused={"no such operator": (1,)}))
    assert inbox.add([letter(1), letter(2)]) == [2]
    assert inbox.batch(2).letters == (letter(2),)


def test_many_are_divided(inbox, monkeypatch):
    monkeypatch.setattr(redrive, "MOST_LETTERS", 3)
    monkeypatch.setattr(redrive, "MOST_BYTES", 2 * len(letter(0)))
    assert inbox.add([letter(i) for i in range(5)]) == [1, 2, 3]
    assert [len(inbox.batch(n).letters) for n in (1, 2, 3)] == [2, 2, 1]


def test_several_give_the_same_ones_at_once(inbox):
    letters = [letter(i) for i in range(40)]

    def give(number):
        inbox.add(letters[number:] + letters[:number])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(give, range(0, 40, 5)))
    given = [data for n in inbox.numbers() for data in inbox.batch(n).letters]
    assert sorted(given) == sorted(letters)


def test_jobs_do_not_see_each_others(tmp_path, inbox):
    inbox.add([letter(1)])
    assert RedriveInbox(LocalStorage(tmp_path), "k").numbers() == []


def test_a_damaged_batch_is_named(tmp_path, inbox):
    inbox.add([letter(1)])
    path = tmp_path / "redrive/j/1.json"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptFileError, match=r"redrive/j/1.json is damaged"):
        inbox.batch(1)


@pytest.mark.parametrize("data", [b"", b"turnback letter 1\n\x93", b"x" * 9])
def test_what_is_no_letter(data):
    with pytest.raises(ConfigurationError, match="is not a dead letter"):
        decode_letter(data)
