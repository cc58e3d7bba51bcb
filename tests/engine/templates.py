"""Chat templates of several families' kinds, written for tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from headrace.engine.chat_template import ChatTemplate
from headrace.engine.template_budget import RenderLimits

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PARTS = "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}"
STRICT = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}[{{ message['role'] }}]{{ message['content'] | trim }}{% endfor %}"
)
SPECIAL_NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


def fixed_now() -> datetime:
    return datetime(2024, 7, 26, 12, 30, tzinfo=UTC)


def chat_template(
    source: str, limits: RenderLimits | None = None, more: Mapping[str, str] | None = None
) -> ChatTemplate:
    return ChatTemplate({"default": source, **(more or {})}, SPECIAL_NAMES, fixed_now, limits)
