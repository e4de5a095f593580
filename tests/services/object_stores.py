"""Servers of all object stores, which tests use alike."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from services.azure import AzureServer, azure_server
from services.gcs import GcsServer, gcs_server
from services.s3 import S3Server, s3_server

ObjectServer = S3Server | GcsServer | AzureServer
OBJECT_STORES: dict[str, Callable[[Path], AbstractContextManager[ObjectServer]]] = {
    "s3": s3_server,
    "gcs": gcs_server,
    "azure": azure_server,
}
