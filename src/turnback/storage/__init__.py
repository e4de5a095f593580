"""Durable files: one narrow interface, and what is needed to trust what was read."""

from turnback.storage.base import Storage, claim
from turnback.storage.digest import check, digest
from turnback.storage.envelope import seal, unseal
from turnback.storage.local import LocalStorage
from turnback.storage.memory import MemoryStorage
from turnback.storage.open import open_storage
from turnback.storage.s3 import S3Storage

__all__ = [
    "LocalStorage",
    "MemoryStorage",
    "S3Storage",
    "Storage",
    "check",
    "claim",
    "digest",
    "open_storage",
    "seal",
    "unseal",
]
