from .records import KafkaRecordSerializationSchema, KafkaTopicSelector
from .sink import DeliveryGuarantee, KafkaSink
from .source import KafkaOffsetsInitializer, KafkaSource, KafkaTopicPartition

__all__ = [
    "DeliveryGuarantee",
    "KafkaOffsetsInitializer",
    "KafkaRecordSerializationSchema",
    "KafkaSink",
    "KafkaSource",
    "KafkaTopicPartition",
    "KafkaTopicSelector",
]
