"""The stream as a browser reads it: by `fetch` across origins, and by its own EventSource.

EventSource can only GET, so the page's server passes the stream of a POST on, byte by byte. No
driver is needed: the page tells its server what it has read.
"""

from __future__ import annotations

import http.client
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None
)
LIMIT_SECONDS = 90
QUESTION = {
    "model": "tiny",
    "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [{"role": "user", "content": "Hello"}],
}
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer secret"}
PAGE = """<!doctype html><meta charset="utf-8"><script>
const told = message => fetch("/result", {method: "POST", body: JSON.stringify(message)});
const text_of = events => events.filter(event => event !== "[DONE]").map(event => JSON.parse(event))
    .flatMap(chunk => chunk.choices).map(choice => choice.delta.content || "").join("");
async function by_fetch() {
  const asked = {method: "POST", headers: HEADERS, body: BODY};
  const answer = await fetch("UPSTREAM/v1/chat/completions", asked);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let read = "";
  for (;;) { const {value, done} = await reader.read(); if (done) break; read += value; }
  const events = read.split("\\n\\n").filter(part => part).map(part => part.replace(/^data: /, ""));
  return {text: text_of(events), last: events.at(-1), id: answer.headers.get("X-Request-Id")};
}
function by_event_source() {
  return new Promise((resolve, reject) => {
    const events = [], source = new EventSource("/events");
    source.onerror = () => { source.close(); reject("EventSource failed after " + events.length); };
    source.onmessage = event => {
      events.push(event.data);
      if (event.data !== "[DONE]") return;
      source.close();
      resolve({text: text_of(events), last: event.data});
    };
  });
}
Promise.all([by_fetch(), by_event_source()]).then(told, error => told({error: String(error)}));
</script>"""


class Page:
    """Serves the page, the stream it reads, and takes what it tells."""

    def __init__(self, upstream: str) -> None:
        self.results: queue.Queue[Any] = queue.Queue()
        self._upstream = upstream.removeprefix("http://")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(page) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - self is the handler
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/events":
                    page._pass_on(self)
                    return
                html = PAGE.replace("UPSTREAM", f"http://{page._upstream}")
                html = html.replace("HEADERS", json.dumps(HEADERS))
                html = html.replace("BODY", repr(json.dumps(QUESTION)))
                self.send_response(200 if self.path == "/" else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(html.encode())

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                page.results.put(json.loads(self.rfile.read(length)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def _pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        connection = http.client.HTTPConnection(self._upstream, timeout=LIMIT_SECONDS)
        connection.request("POST", "/v1/chat/completions", json.dumps(QUESTION), HEADERS)
        answer = connection.getresponse()
        handler.send_response(answer.status)
        handler.send_header("Content-Type", answer.headers["Content-Type"])
        handler.end_headers()
        while byte := answer.read(1):  # the hardest split: within characters, within fields
            handler.wfile.write(byte)
            handler.wfile.flush()
        connection.close()


@pytest.fixture
def open_page(tmp_path: Path) -> Iterator[Any]:
    """`open_page(upstream)`: what the page tells in a browser."""
    pages: list[Page] = []
    browsers: list[subprocess.Popen[bytes]] = []

    def run(upstream: str) -> Any:
        pages.append(Page(upstream))
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
        quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update")
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        command = [str(BROWSER), *flags, *quiet, profile, pages[0].url]
        with (tmp_path / "browser.log").open("wb") as log:
            browsers.append(subprocess.Popen(command, stdout=log, stderr=log))
        try:
            return pages[0].results.get(timeout=LIMIT_SECONDS)
        except queue.Empty:
            log_text = (tmp_path / "browser.log").read_text(errors="replace")
            pytest.fail(f"the page has told nothing: {log_text[-2000:]}")

    yield run
    for browser in browsers:
        browser.terminate()
        browser.wait(LIMIT_SECONDS)
    for page in pages:
        page.close()


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="neither chromium nor google-chrome is installed")
def test_a_browser_reads_the_stream(start_server: Any, open_page: Any) -> None:
    server = start_server(cors_origins="*")
    messages = [{"role": "user", "content": "Hello"}]
    whole = server.client.chat.completions.create(model="tiny", messages=messages)
    told = open_page(server.url)
    assert isinstance(told, list), told
    by_fetch, by_event_source = told
    assert by_fetch["text"] == by_event_source["text"] == whole.choices[0].message.content
    assert by_fetch["last"] == by_event_source["last"] == "[DONE]"
    assert by_fetch["id"]
