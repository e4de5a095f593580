from .source import RabbitMQOffsetsInitializer, RabbitMQSource

__all__ = [
    "RabbitMQOffsetsInitializer",
    "RabbitMQSource",
]
