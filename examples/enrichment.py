"""Payments with the exchange rate of their currency; rates come as a stream and reach every task.

    python examples/enrichment.py payments/ rates/ converted/

`payments` is a directory of JSON lines with `account`, `currency` and `amount`, `rates` one with
`currency` and `rate`. Payments in a currency that has no rate yet wait for its first one.
"""

import sys
from collections.abc import Iterator
from typing import Any

from turnback import (
    FileSink,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    StreamExecutionEnvironment,
)
from turnback.functions import KeyedBroadcastProcessFunction

RATES = MapStateDescriptor("rates", str, float)
PAYMENT = "account string, currency string, amount double"
WAITING = ListStateDescriptor("waiting", PAYMENT)
CONVERTED = "account string, currency string, amount double, in_euro double"


class Convert(KeyedBroadcastProcessFunction):
    waiting = WAITING

    def process_element(self, value: Row, ctx: Any) -> Iterator[Row]:
        rate = ctx.get_broadcast_state(RATES).get(value.currency)
        if rate is None:
            self.waiting.add(value)
        else:
            yield Row(*value, value.amount * rate)

    def process_broadcast_element(self, value: Row, ctx: Any) -> Iterator[Row]:
        ctx.get_broadcast_state(RATES).put(value.currency, value.rate)
        ready: list[Row] = []

        def take(account: str, waiting: Any) -> None:
            payments = waiting.get()
            waiting.update([each for each in payments if each.currency != value.currency])
            ready.extend(each for each in payments if each.currency == value.currency)

        ctx.apply_to_keyed_state(WAITING, take)
        for payment in ready:
            yield Row(*payment, payment.amount * value.rate)


def build(env: StreamExecutionEnvironment, payments: str, rates: str, out: str) -> None:
    paid = env.from_files(payments, "json", PAYMENT, uid="payments")
    rate = env.from_files(rates, "json", "currency string, rate double", uid="rates")
    converted = paid.key_by("account").connect(rate.broadcast(RATES)).process(Convert(), CONVERTED)
    converted.uid("convert").sink_to(FileSink(out, "json")).uid("out")


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env, *sys.argv[1:4])
    env.execute("enrichment", bounded=True)
