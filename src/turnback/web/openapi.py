"""The API in OpenAPI's words, made from the same table as its routes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

import msgspec

from turnback.web.api import PREFIX
from turnback.web.endpoint import Endpoint, Parameter
from turnback.web.model import ErrorAnswer

_REF = "#/components/schemas/{name}"
_JSON = "application/json"


def openapi(endpoints: Sequence[Endpoint], root_path: str = "") -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the API."""
    types = [e.answer for e in endpoints] + [e.body for e in endpoints if e.body] + [ErrorAnswer]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    answers = schemas[: len(endpoints)]
    bodies = dict(zip((e for e in endpoints if e.body), schemas[len(endpoints) :], strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint, answer in zip(endpoints, answers, strict=True):
        operation = _operation(endpoint, answer, bodies.get(endpoint))
        paths.setdefault(PREFIX + endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turnback",
            "version": metadata.version("turnback"),
            "description": (
                "What the dashboard shows and does. Times are milliseconds since 1970, sizes are "
                "bytes. Whatever changes something needs the token."
            ),
        },
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    endpoint: Endpoint, answer: dict[str, Any], body: dict[str, Any] | None
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(endpoint),
        "summary": endpoint.doc,
        "parameters": [_in_path(name) for name in endpoint.names]
        + [_in_query(parameter) for parameter in endpoint.query],
        "responses": {
            str(endpoint.status): {"description": "Done.", "content": {_JSON: {"schema": answer}}},
            "default": {
                "description": "What went wrong.",
                "content": {_JSON: {"schema": {"$ref": _REF.format(name="ErrorAnswer")}}},
            },
        },
        # Reads need it only where other machines get in.
        "security": [{"token": []}] if endpoint.method == "POST" else [{}, {"token": []}],
    }
    if body is not None:
        operation["requestBody"] = {"required": False, "content": {_JSON: {"schema": body}}}
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    words = [part.strip("{}") for part in endpoint.path.split("/") if part]
    return "-".join([endpoint.method.lower(), *words])


def _in_path(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": "percent-encoded, slashes too",
        "schema": {"type": "string"},
    }


def _in_query(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if parameter.type is int:
        schema = {"type": "integer", "minimum": parameter.least, "maximum": parameter.most}
        if parameter.default is not None:
            schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "description": parameter.doc,
        "schema": schema,
    }
