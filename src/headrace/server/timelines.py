"""``GET /v1/requests/{id}/timeline``: where the time of one request went.

Owns who may see what: the requests of the caller's own tenant, or all where no keys are asked for.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.core.timeline import SequenceTimeline
from headrace.engine.timeline_story import tell
from headrace.server.context import ServerContext
from headrace.server.errors import refusal
from headrace.server.root_routes import json_response

_MAX_SHOWN_CHARS = 100


class TimelineReply(msgspec.Struct, frozen=True, kw_only=True):
    """The sequences of a request, in data and in sentences."""

    object: str = "request.timeline"
    id: str
    sequences: list[SequenceTimeline]
    summary: list[str]


async def show_timeline(context: ServerContext, http: HttpRequest) -> Response:
    """What happened to a request: by its ``x-request-id`` or the id of its reply, while it runs or soon after."""
    request_id = str(http.path_params["request_id"])
    if not context.config.enable_timelines:
        raise refusal(404, "this server records no timelines; start it without --no-enable-timelines", "not_found")
    context.check_serving()
    tenant = context.desk.viewer(http.scope["headers"])
    found = await context.client.timeline(request_id)
    sequences = [life for life in found if tenant is None or life.tenant == tenant]
    if not sequences:
        raise refusal(
            404,
            f"no request {request_id[:_MAX_SHOWN_CHARS]!r} runs or is among the latest that finished; send an "
            "x-request-id with the request, or take the id of its reply",
            "request_not_found",
        )
    latest = [life for life in sequences if life.request_id == sequences[0].request_id]
    summary = [sentence for life in latest for sentence in tell(life)]
    return json_response(TimelineReply(id=request_id, sequences=sequences, summary=summary))
