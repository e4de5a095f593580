"""Mean and variance of what each user has paid so far, for whole batches at once with NumPy."""

import sys

import numpy as np
import pyarrow as pa

from turnback import FileSink, StreamExecutionEnvironment, ValueStateDescriptor
from turnback.functions import KeyedBatchFunction


class Features(KeyedBatchFunction):
    stats = ValueStateDescriptor("stats", "n bigint, mean double, m2 double")

    def process_batch(self, batch, state):
        user, amount = state.index, batch["amount"].to_numpy()
        # Of this batch alone: number, mean, and sum of the squared distances from the mean.
        n = np.bincount(user)
        mean = np.bincount(user, amount) / n
        m2 = np.bincount(user, (amount - mean[user]) ** 2)
        # Joined with those of all batches before it, as Chan, Golub and LeVeque do.
        before = state.read(self.stats)
        n0, mean0, m20 = (column.fill_null(0).to_numpy() for column in before.flatten())
        total, distance = n0 + n, mean - mean0
        mean = mean0 + distance * n / total
        m2 = m20 + m2 + distance**2 * n0 * n / total
        state.write(self.stats, {"n": total, "mean": mean, "m2": m2})
        return pa.table({"user": state.keys, "mean": mean, "variance": m2 / total})


FEATURES = "user string, mean double, variance double"


def main(payments: str, out: str, jobs: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(root=jobs)
    env.enable_checkpointing("200 ms")
    stream = env.from_files(payments, "json", "user string, amount double", uid="payments")
    paid = stream.filter(lambda payment: payment.amount is not None).uid("paid")
    features = paid.key_by("user").process(Features(), output_type=FEATURES).uid("features")
    features.sink_to(FileSink(out, "json")).uid("model")
    env.execute("features")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python features.py PAYMENTS OUT JOBS")
    main(*sys.argv[1:])
