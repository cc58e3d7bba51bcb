"""Chat templates: from messages to the text a model was trained to continue.

Owns compiling a model's template once and rendering it many times within limits; a rendering that fails, for
whatever reason, is the request's fault and never a crash. Does not know tokens: keeping typed control tokens
apart is done around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import CodeType
from typing import Any

import jinja2
from jinja2 import meta

from headrace.core.errors import ConfigError, InvalidRequest
from headrace.engine.chat_messages import MessageStyle, template_messages
from headrace.engine.template_budget import RenderBudget, RenderLimits
from headrace.engine.template_sandbox import TemplateSandbox
from headrace.engine.tokenizer_spec import DEFAULT_TEMPLATE, TOOL_USE_TEMPLATE

_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_PROBE = "probe of the content's form"
_CUT_MARK = "\U0001fffe"
"""A noncharacter put behind the message to be continued; the text is cut there."""
_MAX_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How to render a conversation.

    ``add_generation_prompt`` opens the assistant's next turn. ``continue_final_message`` instead leaves the
    last message open, to be continued. ``template_kwargs`` are further variables of the template.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, object]] | None = None
    template_kwargs: Mapping[str, object] = field(default_factory=dict)


class ChatTemplate:
    """A model's chat template, or several by name. Immutable and thread-safe.

    ``sources`` holds at least ``default``; one named ``tool_use`` serves requests with tools.
    ``special_names`` are its variables like ``bos_token``. ``variables`` are all names it reads: a request may
    set those the server does not, and setting others changes nothing. Raises ``ConfigError`` for a template that cannot
    be compiled.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        special_names: Mapping[str, str],
        now: Callable[[], datetime],
        limits: RenderLimits | None = None,
    ) -> None:
        self._limits = limits or RenderLimits()
        self._now = now
        self._special_names = dict(special_names)
        wanted = [name for name in (DEFAULT_TEMPLATE, TOOL_USE_TEMPLATE) if name in sources]
        if DEFAULT_TEMPLATE not in wanted:
            raise ConfigError("there is no chat template named 'default'; name a file with --chat-template")
        self._codes = {name: self._compile(sources[name]) for name in wanted}
        self.variables = frozenset().union(*(self._undeclared(sources[name]) for name in wanted))
        self._style = MessageStyle(self._expects_parts(), "developer" in sources[DEFAULT_TEMPLATE])

    def render(self, messages: Sequence[Mapping[str, object]], options: ChatOptions) -> str:
        """Return the prompt's text, control tokens spelled out.

        Raises ``InvalidRequest`` with the template's own words where it refuses the messages, and for
        whatever else goes wrong in it.
        """
        if options.add_generation_prompt and options.continue_final_message:
            raise InvalidRequest(
                "add_generation_prompt and continue_final_message exclude each other", "continue_final_message"
            )
        shown = template_messages(messages, self._style)
        if options.continue_final_message:
            _mark_end(shown[-1])
        text = self._render(self._code(options), self._variables(shown, options))
        return _cut_at_mark(text) if options.continue_final_message else text

    def _code(self, options: ChatOptions) -> CodeType:
        default = self._codes[DEFAULT_TEMPLATE]
        return self._codes.get(TOOL_USE_TEMPLATE, default) if options.tools else default

    def _variables(self, messages: list[dict[str, Any]], options: ChatOptions) -> dict[str, object]:
        taken = options.template_kwargs.keys() & (_OWN_VARIABLES | self._special_names.keys())
        if taken:
            raise InvalidRequest(
                f"chat_template_kwargs sets {', '.join(sorted(taken))}, which the server sets itself",
                "chat_template_kwargs",
            )
        return {
            **self._special_names,
            **options.template_kwargs,
            "messages": messages,
            "tools": options.tools,
            "documents": None,
            "add_generation_prompt": options.add_generation_prompt,
        }

    def _render(self, code: CodeType, variables: Mapping[str, object]) -> str:
        budget = RenderBudget(self._limits)
        sandbox = TemplateSandbox(budget, self._now)
        pieces = []
        try:
            for value in variables.values():
                budget.weigh(value)
            template = jinja2.Template.from_code(sandbox, code, sandbox.make_globals(None))
            for piece in template.generate(variables):
                budget.weigh(piece)  # what a filter made of a block need not be a text
                text = str(piece)
                budget.emit(text)
                pieces.append(text)
        except InvalidRequest:
            raise
        except Exception as error:  # a template is a program; whatever it raises says it cannot show these messages
            shown = str(error)[:_MAX_SHOWN_CHARS]
            raise InvalidRequest(
                f"the chat template cannot render these messages: {type(error).__name__}: {shown}", "messages"
            ) from error
        return "".join(pieces)

    def _compile(self, source: str) -> CodeType:
        sandbox = TemplateSandbox(RenderBudget(self._limits), self._now)
        try:
            return sandbox.compile(sandbox.parse(source), filename="<chat template>")
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"the chat template is wrong in line {error.lineno}: {error.message}") from error
        except Exception as error:  # the code generator meets hostile input too: recursion, syntax of its output
            raise ConfigError(f"the chat template cannot be compiled: {type(error).__name__}") from error

    def _undeclared(self, source: str) -> set[str]:
        """Variables the template reads and does not set, less those of the environment."""
        sandbox = TemplateSandbox(RenderBudget(self._limits), self._now)
        return meta.find_undeclared_variables(sandbox.parse(source)) - sandbox.globals.keys()

    def _expects_parts(self) -> bool:
        """Whether the template shows content given as parts but not as text."""
        return not self._shows(_PROBE) and self._shows([{"type": "text", "text": _PROBE}])

    def _shows(self, content: object) -> bool:
        messages = [{"role": "user", "content": content}]
        try:
            return _PROBE in self._render(self._codes[DEFAULT_TEMPLATE], self._variables(messages, ChatOptions()))
        except InvalidRequest:
            return False


def _mark_end(message: dict[str, Any]) -> None:
    """Put the cut mark behind a message's content."""
    if isinstance(message["content"], str):
        message["content"] += _CUT_MARK
    else:
        message["content"][-1]["text"] += _CUT_MARK


def _cut_at_mark(text: str) -> str:
    end = text.rfind(_CUT_MARK)
    if end < 0:
        raise InvalidRequest(
            "the chat template does not show the last message's content, so it cannot be continued",
            "continue_final_message",
        )
    return text[:end].replace(_CUT_MARK, "")
