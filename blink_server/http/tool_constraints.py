"""Tool calls as constraints: what an answer that calls tools must be."""

from __future__ import annotations

from blink_server.http.tool_fields import ToolUse
from blink_server.text.grammar.constraint import Constraint, Spec, any_of, sequence, text
from blink_server.text.tools.parser import CallShape, ConstrainedFormat, ToolFormat, ToolShape


def constrained_calls(
    use: ToolUse, tool_format: ToolFormat, content: Constraint | None
) -> Constraint | None:
    """The constraint of an answer that may call tools; `content` is that of one that calls none.

    A call that was asked for is one of the tools, with arguments that fulfil the tool's schema if
    that can be held, and otherwise are a JSON object. Where no call was asked for, only tools that
    are `strict` make a constraint of calls. None where the format's calls cannot be described.
    """
    strict = any(tool["function"].get("strict") for tool in use.tools)
    if not isinstance(tool_format, ConstrainedFormat):
        return None if use.required else content
    if not (use.required or strict or content is not None):
        return None
    shape = CallShape(
        tuple(_tool_shape(use, place) for place in range(len(use.tools))), use.parallel
    )
    if use.required:
        spec = tool_format.after_opening(use.name, shape)
        return Constraint(spec, "tools", optional=not strict)
    calls = sequence(text(tool_format.opening(None)), tool_format.after_opening(None, shape))
    if content is None:
        return Constraint(tool_format.content_then(calls), "tools")
    return Constraint(any_of(content.spec, calls), content.param)


def _tool_shape(use: ToolUse, place: int) -> ToolShape:
    function = use.tools[place]["function"]
    parameters = function.get("parameters")
    path = f"tools[{place}].function.parameters"
    schema = {"type": "object", **parameters} if parameters else {"const": {}}
    arguments: Spec = {"type": "json_schema", "schema": schema, "path": path}
    lenient = {} if function.get("strict") else {"or_any_object": True}
    return ToolShape(function["name"], {**arguments, **lenient})
