from __future__ import annotations

import pytest
from rstream import AMQPMessage
from rstream._pyamqp.message import Properties

from turnback.connectors.rabbitmq.client import body_of, properties_of


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_data_of_any_size(size):
    body = bytes(i % 251 for i in range(size))
    assert body_of(bytes(AMQPMessage(body=body))) == body


def test_what_stands_before_the_data_is_left_out():
    message = AMQPMessage(
        body=b"x",
        properties=Properties(message_id="7", subject="likes"),
        application_properties={"from": "phone", "n": 3},
        message_annotations={b"x-kind": "like"},
    )
    assert body_of(bytes(message)) == b"x"
    assert properties_of(bytes(message)) == [("from", b"phone"), ("n", b"3")]
    assert properties_of(bytes(AMQPMessage(body=b"x"))) == []


def test_several_sections_of_data_are_one_body():
    assert body_of(bytes(AMQPMessage(body=b"ab")) + bytes(AMQPMessage(body=b"c"))) == b"abc"


def test_a_text_is_its_bytes():
    assert body_of(bytes(AMQPMessage(value="grün"))) == "grün".encode()


def test_what_is_no_message_stays_as_it_is():
    assert body_of(b'{"n": 1}') == b'{"n": 1}'
    assert body_of(b"") == b""
    assert properties_of(b"plain") == []


def test_a_map_is_refused():
    with pytest.raises(ValueError, match="neither bytes nor text"):
        body_of(bytes(AMQPMessage(value={"a": 1})))


def test_a_damaged_message_is_refused():
    with pytest.raises(ValueError, match=r"not an AMQP 1\.0 message"):
        body_of(bytes(AMQPMessage(body=b"ab")) + b"\x01\x02\x03\x04")
