"""``/openapi.json``, made from the route table and the structs the server itself decodes with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from headrace.server.errors import ErrorResponse
from headrace.server.protocol_common import GenerationFields
from headrace.server.routes import RouteSpec, Shape, Untyped

_REF = "#/components/schemas/{name}"
_CONVERTOR = re.compile(r"\{(\w+):\w+\}")

Document = dict[str, Any]
"""JSON as it comes: the shape of an OpenAPI document is OpenAPI's, not ours."""


def openapi_document(routes: Sequence[RouteSpec]) -> Document:
    """The OpenAPI 3.1 description of ``routes``."""
    shapes: list[Shape] = [shape for route in routes for shape in (*_taken(route), *_given(route))]
    shapes.append(ErrorResponse)
    schemas, components = msgspec.json.schema_components(shapes, ref_template=_REF)
    by_shape = dict(zip(shapes, schemas, strict=True))
    paths: dict[str, Document] = {}
    for route in routes:
        path = _CONVERTOR.sub(r"{\1}", route.path)
        for method in route.methods:
            paths.setdefault(path, {})[method.lower()] = _operation(route, method, by_shape)
    return {
        "openapi": "3.1.0",
        "info": {"title": "headrace", "version": version("headrace")},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"api_key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"api_key": []}, {}],
    }


def _taken(route: RouteSpec) -> tuple[Shape, ...]:
    return () if route.takes is None else (route.takes,)


def _given(route: RouteSpec) -> tuple[Shape, ...]:
    if isinstance(route.gives, Untyped):
        return ()
    return route.gives if isinstance(route.gives, tuple) else (route.gives,)


def _operation(route: RouteSpec, method: str, schemas: dict[Shape, Document]) -> Document:
    summary = (route.handler.__doc__ or "").strip().split("\n")[0]
    name = re.sub(r"\W+", "_", route.path).strip("_")
    operation: Document = {
        "summary": summary,
        "operationId": f"{method.lower()}_{name}",
        "responses": {
            "200": _success(route, schemas),
            "default": {"description": "What went wrong", "content": _json(schemas[ErrorResponse])},
        },
    }
    if parameters := _CONVERTOR.findall(route.path):
        operation["parameters"] = [
            {"name": parameter, "in": "path", "required": True, "schema": {"type": "string"}}
            for parameter in parameters
        ]
    if route.takes is not None:
        operation["requestBody"] = {"required": True, "content": _json(schemas[route.takes])}
    return operation


def _success(route: RouteSpec, schemas: dict[Shape, Document]) -> Document:
    if route.gives is Untyped.NOTHING:
        return {"description": "Done"}
    if route.gives is Untyped.TEXT:
        return {"description": "Text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    given = [schemas[shape] for shape in _given(route)]
    content = _json(given[0] if len(given) == 1 else {"anyOf": given})
    if route.takes is not None and issubclass(route.takes, GenerationFields):
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "The answer", "content": content}


def _json(schema: Document) -> Document:
    return {"application/json": {"schema": schema}}
