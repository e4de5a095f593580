"""How to test a function over batches: however its input is cut, the state must be the same."""

import random
from collections import defaultdict
from statistics import fmean, pvariance

import pytest
from features import FEATURES, Features

from turnback import FileSink
from turnback.testing import JobHarness, source


def program(env):
    payments = source(env, "payments", "user string, amount double")
    features = payments.key_by("user").process(Features(), FEATURES).uid("features")
    features.sink_to(FileSink("/model", "json")).uid("model")


def test_it_gives_each_user_once_per_epoch(tmp_path):
    with JobHarness(program, tmp_path) as job:
        job.push("payments", ("ann", 1.0), ("bob", 5.0), ("ann", 3.0))
        assert sorted(job.output("model")) == [("ann", 2.0, 1.0), ("bob", 5.0, 0.0)]
        job.push("payments", ("bob", 7.0))
        assert job.output("model")[-1] == ("bob", 6.0, 1.0)


@pytest.mark.parametrize("epochs", [1, 3, 20])
def test_its_state_does_not_depend_on_where_epochs_end(tmp_path, epochs):
    chance, paid = random.Random(7), defaultdict(list)
    with JobHarness(program, tmp_path) as job:
        for epoch in range(epochs):
            payments = [(chance.choice("abc"), chance.gauss(1e6)) for _ in range(60 // epochs)]
            for user, amount in payments:
                paid[user].append(amount)
            job.push("payments", *payments, checkpoint=epoch == epochs - 1)
        state = job.state("features", "stats")
    for user, amounts in paid.items():
        n, mean, m2 = state[user]
        assert n == len(amounts)
        assert mean == pytest.approx(fmean(amounts), rel=1e-12)
        assert m2 / n == pytest.approx(pvariance(amounts), rel=1e-6)
