"""Whether a chat template, which is a program of the model's, can be compiled at all."""

from __future__ import annotations

import jinja2

from blink_server.text.chat_template import ChatTemplate


def template_fault(source: str) -> str | None:
    """What is wrong with a template's syntax, with its line, or None."""
    try:
        ChatTemplate(source)
    except jinja2.TemplateSyntaxError as error:
        return f"must be a Jinja template; line {error.lineno}: {error.message}"
    return None
