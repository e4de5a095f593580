from .schemas import (
    DeserializationSchema,
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
    SerializationSchema,
    SimpleStringSchema,
)

__all__ = [
    "DeserializationSchema",
    "JsonRowDeserializationSchema",
    "JsonRowSerializationSchema",
    "SerializationSchema",
    "SimpleStringSchema",
]
