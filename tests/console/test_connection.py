"""Keys, lost connections, pages out of sight, and the modules that the page is made of."""

from __future__ import annotations

import ast
import itertools
import json
import random
import shlex
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from blink_server.console.snapshot import changes

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_key_logs_in_and_is_in_no_url(open_page: Any, url_with_key: str) -> None:
    page = await open_page(url_with_key, expected="locked")
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    await page.get_by_label("Key", exact=True).fill("wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("does not take this key")
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Enter the API key").click()
    await page.get_by_label("Key", exact=True).fill("a-secret-key")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("body[data-connection=live]")
    await page.get_by_label("Message").fill("Hello")
    await page.select_option("#model", "wide")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#outcome")).to_contain_text("Finished")
    assert "$BLINK_API_KEY" in await page.locator("#curl").text_content()
    assert "a-secret-key" not in await page.content()
    assert not any("secret" in url for url in [*urls, page.url])
    await page.reload()  # the tab still has it
    await page.wait_for_selector("body[data-connection=live]")


async def test_a_lost_connection_is_shown_and_found_again(open_page: Any, url: str) -> None:
    page = await open_page(url)
    feed = "**/console/events"
    await page.route(feed, lambda route: route.fulfill(status=503, body=""))
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # still in sight
    assert await page.get_attribute("body", "data-connection") == "live"
    await page.reload()
    await page.wait_for_selector("body[data-connection=lost]")
    await expect(page.locator("#connection")).to_contain_text("not connected")
    await page.unroute(feed)
    await page.wait_for_selector("body[data-connection=live]")


async def test_a_page_out_of_sight_hangs_up(open_page: Any, url: str) -> None:
    page = await open_page(url)
    hide = """(hidden) => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    async with page.expect_event("requestfailed") as failed:
        await page.evaluate(hide, True)
    assert (await failed.value).url.endswith("/console/events")
    await page.wait_for_selector("body[data-connection=paused]")
    await page.evaluate(hide, False)
    await page.wait_for_selector("body[data-connection=live]")


def a_state(choose: random.Random, depth: int = 3) -> Any:
    if depth == 0 or choose.random() < 0.3:
        return choose.choice([0, 1, "text", [1, None], ""])
    names = choose.sample("abcd", choose.randrange(4))
    return {name: a_state(choose, depth - 1) for name in names}


async def test_the_page_merges_changes_as_the_server_means_them(open_page: Any, url: str) -> None:
    page = await open_page(url)
    choose = random.Random(1)
    states = [{"x": a_state(choose)} for _ in range(300)]
    pairs = list(itertools.pairwise(states))
    merged = await page.evaluate(
        """async (text) => {
          const { merge } = await import("/console/feed.js");
          return JSON.parse(text).map(([state, change]) => (merge(state, change), state));
        }""",
        json.dumps([(before, changes(before, after)) for before, after in pairs]),
    )
    assert merged == states[1:]


BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": 'it\'s "so"\nand \\ 你好 $HOME'}],
    "top_k": 5,
    "stop": ["\t"],
    "stream": True,
}


async def test_the_copied_commands_say_what_was_asked(open_page: Any, url: str) -> None:
    page = await open_page(url)
    curl, python = await page.evaluate(
        """async (body) => {
          const { curl, python } = await import("/console/snippets.js");
          return [curl("http://h", "v1/x", body, true), python("http://h", true, body, true)];
        }""",
        BODY,
    )
    words = shlex.split(curl.replace("\\\n", " "))
    assert json.loads(words[words.index("-d") + 1]) == BODY
    assert "Authorization: Bearer $BLINK_API_KEY" in words
    calls = [node for node in ast.walk(ast.parse(python)) if isinstance(node, ast.Call)]
    create = next(call for call in calls if ast.unparse(call.func).endswith("completions.create"))
    given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in create.keywords}
    assert {**given, **given.pop("extra_body")} == {**BODY, "extra_body": {"top_k": 5}}
