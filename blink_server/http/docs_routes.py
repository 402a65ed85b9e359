"""GET /openapi.json, and /docs: the same as a page without scripts."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import falcon.asgi

from blink_server.http.openapi import document
from blink_server.http.server_routes import server_version
from blink_server.http.settings import ServerSettings

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "td{padding:.1em 1em .1em 0;vertical-align:top}code{background:#8881;padding:0 .2em}"
)


class OpenApiResource:
    """GET /openapi.json and /docs."""

    def __init__(self, settings: ServerSettings) -> None:
        described = document(settings.max_n, server_version(), console=settings.http.console)
        self._json = json.dumps(described).encode()
        self._page = page(described).encode()

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """The OpenAPI 3.1 document."""
        resp.content_type = falcon.MEDIA_JSON
        resp.data = self._json

    async def on_get_page(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """The page."""
        resp.content_type = falcon.MEDIA_HTML
        resp.set_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        resp.data = self._page


def page(described: dict[str, Any]) -> str:
    """An OpenAPI document as HTML: each route with the fields of its body."""
    routes = [
        _route(method, path, operation)
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    ]
    title = escape(described["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><h1>{title} {escape(described['info']['version'])}</h1>"
        f'<p>As a document: <a href="openapi.json">openapi.json</a></p>{"".join(routes)}</html>'
    )


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    head = f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    text = f"<p>{escape(operation['summary'])}</p>"
    body = operation.get("requestBody")
    if body is None:
        return head + text
    schema = body["content"]["application/json"]["schema"]
    return head + text + "".join(map(_fields, schema.get("anyOf", [schema])))


def _fields(schema: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{escape(name)}</code>{' *' if name in schema['required'] else ''}"
        f"<td>{escape(in_words(field))}"
        for name, field in schema["properties"].items()
    ]
    return f"<table>{''.join(rows)}</table><p>* needed</p>"


def in_words(schema: dict[str, Any]) -> str:
    """What a schema lets in, in a few words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(in_words, schema["anyOf"])))
    if "enum" in schema or "const" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        return " or ".join(json.dumps(value) for value in allowed)
    kind = schema.get("type", "anything (ignored)")
    kind = kind if isinstance(kind, str) else " or ".join(kind)
    if kind == "array":
        return f"list of {in_words(schema['items'])}"
    bounds = [
        f"{sign} {schema[name]}"
        for name, sign in (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"))
        if name in schema and schema[name] != 2**63 - 1
    ]
    return " ".join([kind, *bounds])
