"""What a person does with the console, and what it looks like to those who cannot see it."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from blink_server.testing.fake_backend import STATS

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Centres of the map's cells that have the colour of the legend's state; full ones, not dimmed.
CELLS = """(state) => {
  const swatch = document.querySelector(`.swatch[data-slot="${state}"]`);
  const wanted = getComputedStyle(swatch).backgroundColor.match(/\\d+/g).map(Number);
  const canvas = document.getElementById("cells");
  const { width, height } = canvas;
  const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  for (let y = 2; y < height; y++) for (let x = 2; x < width; x++) {
    const at = 4 * (y * width + x);
    if ([0, 1, 2].every((part) => pixels[at + part] === wanted[part]) && pixels[at + 3] === 255)
      return { x: x * canvas.clientWidth / width, y: y * canvas.clientHeight / height };
  }
  return null;
}"""
DECODE = 3


async def ask(page: Any, model: str, text: str, tokens: int) -> None:
    await page.select_option("#model", model)
    await page.evaluate("document.getElementById('sampling').open = true")
    await page.get_by_label("Max tokens").fill(str(tokens))
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()


async def until_coloured(page: Any, coloured: bool) -> None:
    """Wait until the map shows a request, or none: it is drawn a moment after what changes it."""
    await page.wait_for_function(f"() => ({CELLS})({DECODE}) {'!' if coloured else '='}== null")


async def test_an_answer_appears_token_by_token(open_page: Any, url: str) -> None:
    page = await open_page(url)
    await ask(page, "slow", "Hello there", 20)
    await expect(page.locator("#outcome")).to_contain_text("20 tokens")
    await expect(page.locator("#outcome")).to_contain_text("First token after")
    tokens = page.locator("#talk .token")
    assert await tokens.count() > 1
    await tokens.nth(1).hover()
    await expect(page.locator("#token-told")).to_contain_text("log-probability")
    assert await page.locator("#token-rows tr").count() >= 5
    await expect(page.locator("#talk")).to_contain_text("Hello there")


async def test_a_completion_goes_on_with_a_text(open_page: Any, url: str) -> None:
    page = await open_page(url)
    await page.get_by_text("Completion", exact=True).click()
    await page.get_by_label("Text to go on with").fill("Once")
    await page.select_option("#model", "slow")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#outcome")).to_contain_text("Finished")
    assert await page.locator("#talk .token").count() > 1


async def test_a_cell_has_another_colour_while_its_request_runs(open_page: Any, url: str) -> None:
    page = await open_page(url)
    await page.get_by_label("Watch slow:1").check()
    await expect(page.locator("#ring-title")).to_contain_text("slow:1")
    await until_coloured(page, False)
    await ask(page, "slow", "a secret question", 1500)
    await until_coloured(page, True)
    place = await page.evaluate(CELLS, DECODE)
    await page.locator("#cells").hover(position=place)
    told = page.locator("#cell-told")
    await expect(told).to_contain_text("decode · ticket")
    assert "secret" not in (await told.text_content())
    await page.get_by_text("Slots in use as a table").click()
    await expect(page.locator("#slot-rows tr")).to_have_count(1)
    await page.get_by_role("button", name="Stop").click()
    await until_coloured(page, False)
    await expect(page.locator("#outcome")).to_contain_text("Stopped")


async def test_states_can_be_filtered_away(open_page: Any, url: str) -> None:
    page = await open_page(url)
    await page.get_by_label("Watch slow:1").check()
    await ask(page, "slow", "Hello", 1500)
    await until_coloured(page, True)
    button = page.get_by_role("button", name="decode")
    await button.click()
    await expect(button).to_have_attribute("aria-pressed", "false")
    await until_coloured(page, False)
    await button.click()
    await until_coloured(page, True)
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator("#outcome")).to_contain_text("Stopped")


async def test_a_broken_version_s_reason_can_be_read(open_page: Any, url: str) -> None:
    for width in (1280, 360):
        page = await open_page(url, viewport={"width": width, "height": 700})
        await expect(page.get_by_role("row", name="hollow")).to_contain_text("UNAVAILABLE")
        reason = page.get_by_text("config.json: limits.max_rows: is -5; must be at least 1")
        await expect(reason).to_be_visible()
        box = await reason.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


async def test_the_scheduler_and_latencies_move(open_page: Any, url: str) -> None:
    page = await open_page(url)
    await page.get_by_label("Watch slow:1").check()
    await ask(page, "slow", "Hello", 1500)
    rows = page.locator(".tile", has_text="Rows used").locator(".value")
    await expect(rows).to_have_text("1 / 8")
    steps = page.locator(".tile", has_text="Steps").locator(".value")
    await expect(steps).not_to_have_text("0")
    await page.get_by_role("button", name="Stop").click()
    await expect(rows).to_have_text("0 / 8")
    told = re.compile("since the start|last minute|last [0-9]+ minutes")
    await expect(page.locator("#latency-rows tr").first).to_contain_text(told)


async def tell(page: Any, url: str, graphs: dict[str, int]) -> None:
    """Show the page a server of one model, whose scheduler tells STATS and these launches."""
    state = {
        "time": time.time(),
        "server": "READY",
        "models": {
            "far:1": {"epoch": 1, "state": "READY", "reason": "", "aliases": [], "serves": True}
        },
        "rings": {},
        "schedulers": {"far:1": {**asdict(STATS), "graphs": None}},
        "graphs": {"far:1": graphs} if graphs else {},
    }
    events = f"event: state\ndata: {json.dumps(state)}\n\n"
    told = {"content_type": "text/event-stream", "body": events}
    await page.route(f"{url}/console/events", lambda route: route.fulfill(**told))
    await page.reload()


async def test_an_agent_is_shown_where_there_is_one(open_page: Any, url: str) -> None:
    page = await open_page(url)
    await expect(page.get_by_role("heading", name="Agent")).to_be_hidden()
    await tell(page, url, {})
    agent = page.get_by_role("region", name="Agent far:1")
    await expect(agent).to_be_visible()
    reconnections = agent.locator(".tile", has_text="Reconnections").locator(".value")
    await expect(reconnections).to_have_text(str(STATS.agent_reconnections))


async def test_mixed_graphs_have_a_grid_where_there_are_some(open_page: Any, url: str) -> None:
    page = await open_page(url)
    await expect(page.get_by_role("grid", name="Mixed graphs")).to_be_hidden()
    await tell(
        page, url, {"decode:8:8": 90, "prefill:2:64": 6, "mixed:2:32:8": 1, "mixed:2:64:8": 4}
    )
    cells = page.get_by_role("grid", name="Mixed graphs").locator("tbody td")
    await expect(cells).to_have_text(["1", "4"])
    await cells.last.hover()
    told = "mixed 2 \N{MULTIPLICATION SIGN} 64 tokens + 8 rows: 4 launches"
    await expect(page.locator("#graph-told")).to_have_text(told)


async def test_a_grid_of_many_graphs_tells_each_by_keyboard(open_page: Any, url: str) -> None:
    page = await open_page(url)
    await page.get_by_label("Watch wide:1").check()
    cells = page.get_by_role("grid", name="Prefill graphs").locator("tbody td")
    await expect(cells).to_have_count(640)
    await cells.first.focus()
    told = page.locator("#graph-told")
    await expect(told).to_contain_text("prefill 1 \N{MULTIPLICATION SIGN} 16 tokens")
    for key in ("ArrowRight", "ArrowDown"):
        await page.keyboard.press(key)
    await expect(told).to_contain_text("prefill 2 \N{MULTIPLICATION SIGN} 32 tokens")


async def test_dark_and_light(open_page: Any, url: str) -> None:
    page = await open_page(url, color_scheme="dark")
    brightness = """() => getComputedStyle(document.body).backgroundColor
        .match(/\\d+/g).map(Number).reduce((sum, part) => sum + part)"""
    assert await page.evaluate(brightness) < 150
    button = page.get_by_role("button", name="Theme")
    await button.click()
    await expect(button).to_have_text("Theme: light")
    assert await page.evaluate(brightness) > 600
    await page.reload()
    await expect(button).to_have_text("Theme: light")
    await button.click()
    assert await page.evaluate(brightness) < 150


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
async def test_nothing_hinders_those_who_cannot_see_it(
    open_page: Any, url: str, scheme: str, width: int
) -> None:
    page = await open_page(
        url, color_scheme=scheme, viewport={"width": width, "height": 800}, reduced_motion="reduce"
    )
    await page.get_by_label("Watch wide:1").check()
    await ask(page, "wide", "Hello", 20)
    await expect(page.locator("#outcome")).to_contain_text("Finished")
    await page.locator("#talk .token").first.focus()
    for name in ("slots", "code"):
        await page.evaluate("(name) => { document.getElementById(name).open = true }", name)
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_everything_by_keyboard(open_page: Any, url: str) -> None:
    page = await open_page(url)

    async def tab_to(condition: str, key: str = "Tab") -> None:
        for _ in range(80):
            await page.keyboard.press(key)
            if await page.evaluate(f"document.activeElement.matches('{condition}')"):
                return
        pytest.fail(f"{key} does not lead to {condition}")

    await tab_to(".skip")
    await tab_to("#model-rows input")
    await page.keyboard.press("ArrowDown")
    await tab_to("#cells")
    await page.keyboard.press("ArrowRight")
    await expect(page.locator("#cell-said")).to_contain_text("slot 1: empty")
    assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    await tab_to("#model")
    await page.keyboard.type("wide")
    await tab_to("[name=prompt]")
    await page.keyboard.type("Hello")
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#outcome")).to_contain_text("Finished")
    await tab_to(".token", "Shift+Tab")
    await page.keyboard.press("ArrowRight")
    await expect(page.locator("#token-said")).to_contain_text("log-probability")
