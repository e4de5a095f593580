"""Payments as a Delta table, and the balance of every account as another, kept up to date.

    python examples/tables.py payments/ tables/

`payments` is a directory of JSON lines with `account`, `day` and `amount`. Needs `turnback[delta]`.
"""

import sys
from collections.abc import Iterator
from typing import Any

from turnback import KeyedProcessFunction, Row, StreamExecutionEnvironment, ValueStateDescriptor
from turnback.connectors.tables import DeltaSink

PAYMENT = "account string, day string, amount bigint"
BALANCE = "account string, balance bigint"


class Balance(KeyedProcessFunction):
    balance = ValueStateDescriptor("balance", int)

    def process_element(self, value: Row, ctx: Any) -> Iterator[Row]:
        balance = (self.balance.value() or 0) + value.amount
        self.balance.update(balance)
        yield Row(value.account, balance)


def build(env: StreamExecutionEnvironment, payments: str, tables: str) -> None:
    paid = env.from_files(payments, "json", PAYMENT, uid="payments")
    paid.sink_to(DeltaSink(f"{tables}/payments", partition_by=["day"])).uid("to-payments")

    balances = paid.key_by("account").process(Balance(), BALANCE).uid("balance")
    latest = DeltaSink(f"{tables}/balances", mode="upsert", key=["account"])
    balances.sink_to(latest).uid("to-balances")


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(10_000)
    build(env, *sys.argv[1:3])
    env.execute("tables", bounded=True)
