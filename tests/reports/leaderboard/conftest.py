"""A headless Chromium, and pages opened in it that must be silent and load nothing else.

Skipped where there is no Chromium (a path in BENCH_CHROMIUM, or one on the PATH) or no playwright
(`make browser` installs it).
"""

import os
import shutil

import pytest

from tests.reports import made
from tests.reports.leaderboard.pages import stored, written

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TASKS = ("narrativeqa", "qmsum", "lra_text", "longeval_lines")


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: make browser")
    found = [os.environ.get("BENCH_CHROMIUM"), *map(shutil.which, NAMES)]
    path = next(filter(None, found), None)
    if path is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    with playwright.sync_playwright() as runner:
        started = runner.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    """The page of rows of every kind: 4 tasks of 3 benchmarks, 2 lengths, 2 devices."""
    folder = tmp_path_factory.mktemp("page")
    return page_of(folder, made.rows(tasks=TASKS, lengths=(1024, 16384)))


def page_of(folder, rows):
    """The address of a page of these rows."""
    written(stored(folder / "runs", rows), folder / "page.html")
    return (folder / "page.html").as_uri()


@pytest.fixture
def opened(browser, address):
    """Opens the page with the given options; at the end, the console must have been silent, and
    only the file may have been requested."""
    said, asked, contexts = [], [], []

    def go(where="", url=address, **options):
        context = browser.new_context(**{"viewport": {"width": 1300, "height": 900}} | options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url.partition("#")[0]))
        page.goto(url + where)
        if options.get("java_script_enabled", True):
            page.wait_for_selector("body.live")
        return page

    yield go
    for context in contexts:
        context.close()
    assert said == [] and all(url.startswith(("file:", "blob:")) for url in asked)
    assert len([url for url in asked if url.startswith("file:")]) == len(contexts)
