"""The console in Debian's Chromium, against a real server with scripted versions.

The browser comes from the system (`apt-get install chromium`); without it the tests are skipped.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from blink_persistent.testing.scripted_version import write_scripted_version
from blink_server.testing.server_process import ServerProcess

CHROMIUM = shutil.which("chromium")
MILLISECONDS = 30_000  # for what takes far less

expect.set_options(timeout=MILLISECONDS)  # by itself it waits for five seconds

Open = Callable[..., Awaitable[Page]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason="needs the system's package chromium")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if CHROMIUM is None:
                item.add_marker(missing)


def write_repository(repository: Path) -> None:
    """Versions: "slow" and "wide" serve, "broken" cannot. "wide" has a grid of 644 graphs."""
    slots = {"slots": 4096, "max_rows": 8, "context_length": 2048}
    write_scripted_version(repository, "slow", limits=slots, step_microseconds=20_000)
    wide = write_scripted_version(
        repository, "wide", limits={"max_prefill_tokens": 1024, "context_length": 2048}
    )
    grid = json.loads((wide / "graph_grid.json").read_text())
    keys = itertools.product(range(1, 11), range(16, 1025, 16))
    grid["prefill"] = [{"sequences": sequences, "tokens": tokens} for sequences, tokens in keys]
    (wide / "graph_grid.json").write_text(json.dumps(grid))
    broken = write_scripted_version(repository, "broken")
    config = json.loads((broken / "config.json").read_text())
    config["limits"]["max_rows"] = -5
    (broken / "config.json").write_text(json.dumps(config))
    (repository / "hollow").mkdir()
    (repository / "hollow" / "model.json").write_text("{")


@pytest.fixture(scope="session")
def repository() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="blink-") as directory:
        write_repository(Path(directory) / "repository")
        yield Path(directory) / "repository"


@asynccontextmanager
async def serving(repository: Path, *arguments: str) -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(prefix="blink-") as runtime:
        server = await ServerProcess.start(repository, Path(runtime) / "run", *arguments)
        try:
            url = await server.ready()
            await server.line(f"{url}/console")
            yield url
            assert await server.stop() == 0
        finally:
            server.kill_everything()
            await server.exit()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def url(repository: Path) -> AsyncIterator[str]:
    async with serving(repository, "--workers=1") as url:
        yield url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def url_with_key(repository: Path, tmp_path_factory: Any) -> AsyncIterator[str]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("a-secret-key\n")
    keys.chmod(0o600)
    async with serving(repository, "--workers=1", f"--api-key-file={keys}") as url:
        yield url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


def told_wrong(message: ConsoleMessage) -> list[str]:
    """A message of the browser that is an error, but for answers that a test has asked for."""
    asked_for = re.search(r"Failed to load resource: .* status of (401|503)", message.text)
    return [message.text] if message.type == "error" and not asked_for else []


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(browser: Browser) -> AsyncIterator[Open]:
    """Opens consoles; at the end none has asked another origin, nor written an error."""
    async with AsyncExitStack() as stack:
        errors: list[str] = []
        origins: set[bool] = set()

        async def open_page(url: str, *, expected: str = "live", **options: Any) -> Page:
            context = await browser.new_context(**options)
            stack.push_async_callback(context.close)
            context.set_default_timeout(MILLISECONDS)
            page = await context.new_page()
            page.on("request", lambda request: origins.add(request.url.startswith(f"{url}/")))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda message: errors.extend(told_wrong(message)))
            await page.goto(f"{url}/console")
            await page.wait_for_selector(f"body[data-connection={expected}]")
            return page

        yield open_page
        assert errors == []
        assert origins == {True}
