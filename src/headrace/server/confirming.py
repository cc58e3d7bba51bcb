"""``POST /v1/requests/{id}/confirm``: a request that was sent on a guess is wanted.

Owns who may say so: the tenant whose request it is. What it means for a request is the scheduler's business.
"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.server.context import ServerContext
from headrace.server.errors import refusal
from headrace.server.root_routes import json_response

_MAX_SHOWN_CHARS = 100


class ConfirmReply(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is served like any other from now on."""

    object: str = "request.confirmed"
    id: str


async def confirm_request(context: ServerContext, http: HttpRequest) -> Response:
    """Serve a request that was sent with ``x-program-guess`` like any other from now on, by its ``x-request-id``."""
    request_id = str(http.path_params["request_id"])
    context.check_serving()
    live = context.traffic.sent_as(request_id, context.desk.viewer(http.scope["headers"]))
    if not live:
        raise refusal(
            404,
            f"no request {request_id[:_MAX_SHOWN_CHARS]!r} of yours runs; send an x-request-id with a request to name "
            "it, and confirm it before it is over",
            "request_not_found",
        )
    await asyncio.gather(*(context.client.confirm(each) for each in live))
    return json_response(ConfirmReply(id=request_id))
