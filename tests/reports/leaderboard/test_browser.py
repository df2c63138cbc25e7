"""The page in a headless Chromium: sorting, filters, keyboard, origins, and the view of each
reader.

Skipped if there is none: conftest.py.
"""

import math
import re
from urllib.parse import parse_qs

import pytest

from tests.reports.leaderboard.conftest import page_of
from tests.reports.leaderboard.pages import HOSTILE, hostile_rows, small

ROWS = '#boards tbody tr[data-row]:not([data-row=""])'


def texts(page, css):
    return [text.strip() for text in page.locator(css).all_inner_texts()]


def first_board(page, column):
    body = page.locator("#boards tbody").first
    return [text.split()[0] for text in body.locator(f"tr[data-row] .{column}").all_inner_texts()]


def numbers(words):
    """The figures among the words, in order; words without a figure are left out."""
    found = [re.search(r"\d+(\.\d+)?", word) for word in words]
    return [float(match[0]) for match in found if match]


def state(page):
    return {name: one for name, [one] in parse_qs(page.url.partition("#")[2]).items()}


# --- sorting -----------------------------------------------------------------------------------


def test_a_click_sorts_each_board_and_another_turns_it_round(opened):
    page = opened()
    page.locator("[data-sort=quality]").first.click()
    found = numbers(first_board(page, "quality"))
    assert len(found) > 4 and found == sorted(found, reverse=True)
    assert page.locator("th[aria-sort]").first.get_attribute("aria-sort") == "descending"
    page.locator("[data-sort=quality]").first.click()
    found = numbers(first_board(page, "quality"))
    assert found == sorted(found) and state(page) == {"sort": "quality", "dir": "ascending"}
    assert "Sorted by quality, ascending" in page.locator("#count").inner_text()


def test_the_keyboard_sorts_and_keeps_the_focus(opened):
    page = opened()
    page.locator("[data-sort=rank]").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.dataset.sort") == "latency"
    shown = first_board(page, "latency")
    ratios = [1.0 if word == "baseline" else float(word[1:]) for word in shown if word != "–"]
    assert len(ratios) > 4 and ratios == sorted(ratios)
    page.keyboard.press("Space")
    assert page.evaluate("document.activeElement.dataset.sort") == "latency"
    assert state(page) == {"sort": "latency", "dir": "descending"}


def test_what_has_no_figure_is_last_whichever_way(opened):
    page = opened("#length=16384&device=cpu&tab=scrolls")
    for column in ("method", "quality", "latency", "memory", "error", "n"):
        for _ in range(2):
            page.locator(f"[data-sort={column}]").first.click()
            shown = [word == "–" for word in first_board(page, column)]
            assert shown == sorted(shown), column


# --- filters and the address -------------------------------------------------------------------


def test_filters_narrow_the_boards_and_stand_in_the_address(opened):
    page = opened()
    before = page.locator(ROWS).count()
    page.select_option("#filter-length", "16384")
    page.select_option("#filter-device", "h200")
    page.select_option("#filter-weights", "finetuned")
    page.select_option("#filter-source", "local")
    assert state(page) == {"length": "16384", "device": "h200", "weights": "finetuned",
                           "source": "local"}  # fmt: skip
    titles = texts(page, "#boards .title span")
    assert 0 < len(titles) < before
    for title in titles:
        assert "16,384 tokens" in title and "h200" in title and "finetuned" in title
    assert page.evaluate("document.activeElement.id") != "body"
    page.locator("#reset").click()
    assert page.locator(ROWS).count() == before and state(page) == {}


def test_an_address_gives_the_same_view_again(opened):
    where = "#tab=lra&task=lra_text&length=1024&device=cpu&sort=latency&dir=descending&x=memory"
    page = opened(where)
    view = texts(page, ROWS)
    assert page.locator("[role=tab][aria-selected=true]").inner_text().startswith("lra")
    assert page.locator("#filter-task").input_value() == "lra_text"
    assert page.locator("[name=x][value=memory]").is_checked()
    assert "Peak memory" in page.locator("#plot-svg").inner_text()
    assert all("lra_text · 1,024 tokens" in title for title in texts(page, "#boards .title span"))
    again = opened("#" + page.url.partition("#")[2])
    assert texts(again, ROWS) == view
    again.evaluate("location.hash = '#tab=longeval'")
    again.wait_for_selector("#boards .title:has-text('longeval_lines')")
    assert "longeval_lines" in texts(again, "#boards .title span")[0]


def test_an_address_of_nonsense_gives_the_first_view(opened):
    nonsense = "#tab=__proto__&sort=constructor&dir=up&x=y&length=%3Cimg%3E&device=%27%22&row=zzz"
    assert texts(opened(nonsense), ROWS) == texts(opened(), ROWS)


def test_filters_that_nothing_fits_say_so(opened):
    page = opened("#source=embedded&weights=finetuned")
    assert page.locator(ROWS).count() == 0 and not page.locator("#plot").is_visible()
    assert "No row has all of these" in page.locator("#count").inner_text()
    page.locator("#reset").click()
    assert page.locator(ROWS).count() > 0 and page.locator("#plot").is_visible()


def test_tabs_are_moved_through_by_arrow_keys(opened):
    page = opened()
    names = [name.split()[0] for name in texts(page, "[role=tab]")]
    assert names == ["scrolls", "longeval", "lra", "all"]
    page.locator("[role=tab]").first.focus()
    for key, name in (("ArrowRight", "longeval"), ("End", "all"), ("ArrowRight", "scrolls"),
                      ("ArrowLeft", "all"), ("Home", "scrolls")):  # fmt: skip
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.textContent").startswith(name)
        assert page.locator("[aria-selected=true]").inner_text().startswith(name)
    assert page.locator("#panel").get_attribute("aria-labelledby") == "tab-0"


# --- kinds, failures, origins ------------------------------------------------------------------


def test_official_embedded_and_random_rows_stand_apart(opened):
    page = opened()
    heads = texts(page, "#boards h2")
    assert heads == ["Official data", "Embedded data or weights", "Random weights"]
    for kind, words in (("official", "embedded"), ("own", "pretrained"), ("random", "finetuned")):
        assert words not in page.locator(f".{kind}").inner_text()
    assert set(texts(page, ".random td.quality")) == {"–"}
    assert texts(page, ".random td.rank") == []


def test_failures_are_rows_and_marks_and_say_how_it_ended(opened):
    page = opened("#length=16384&device=h200&weights=finetuned")
    failed = page.locator("tr.failed")
    assert failed.count() >= 2
    assert "out of GPU memory" in failed.first.inner_text()
    assert "vanilla_eager ✕ out of GPU memory" in page.locator("#plot-svg").inner_text()
    failed.first.locator(".method .number").click()
    said = page.locator("#origin").inner_text()
    assert "oom_device in stage latency" in said and "12,884,901,888 bytes" in said


def test_every_number_opens_where_it_comes_from(opened):
    page = opened("#weights=finetuned&device=cpu&length=1024")
    row = page.locator("#boards tr[data-row]").filter(has_text="vcc").first
    for column in ("quality", "latency", "memory", "error", "n", "rank", "method"):
        shown = row.locator(f".{column} .number").inner_text().split()[0]
        row.locator(f".{column} .number").click()
        dialog = page.locator("#origin")
        said = dialog.inner_text()
        assert re.search(r"Row\s+[0-9a-f]{8,12}\s", said) and "bench run method=vcc task=" in said
        assert "6d4939b4f58a" in said and "a3f0c1d2e4b5a697" in said and "AMD EPYC 9454P" in said
        assert re.search(r"×0\.\d+ \(×0\.\d+ … ×[01]\.\d+\) (faster|slower|undecided)", said)
        assert re.search(r"\d+\.\d \(\d+\.\d … \d+\.\d\) \w+, n = 200", said)
        assert dialog.locator(".histogram").count() == 2
        assert "40 timings" in dialog.locator(".histogram").first.get_attribute("aria-label")
        if column in ("quality", "latency", "memory", "error"):
            assert shown in dialog.locator("section.asked").inner_text()
        assert re.fullmatch(r"[0-9a-f]{8,12}", state(page)["row"])
        page.keyboard.press("Escape")
        page.wait_for_url(lambda url: "row=" not in url)
        assert not dialog.is_visible()
        assert page.evaluate("document.activeElement.classList.contains('number')")


def test_the_address_of_a_row_opens_it(opened):
    page = opened()
    page.locator("#boards .latency .number").nth(3).click()
    said = page.locator("#origin").inner_text()
    again = opened("#row=" + state(page)["row"])
    body = again.locator("#origin-body").inner_text()
    assert again.locator("#origin-title").inner_text() == said.splitlines()[0]
    assert state(page)["row"] in body


def test_arrow_keys_move_between_numbers_and_enter_opens_one(opened):
    page = opened()
    page.locator("#boards tr[data-row] .method .number").first.focus()
    start = page.evaluate("document.activeElement.closest('tr').dataset.row")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.parentElement.className") == "quality"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.closest('tr').dataset.row") != start
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.closest('tr').dataset.row") == start
    page.keyboard.press("Enter")
    assert page.locator("#origin").is_visible()


# --- the plot ----------------------------------------------------------------------------------


def test_points_and_rows_are_linked_both_ways(opened):
    page = opened("#weights=finetuned&device=cpu&length=1024&task=qmsum")
    assert page.locator("#plot-svg .point:not(.lost)").count() == 8
    point = page.locator("#plot-svg .point").nth(2)
    row = page.locator(f"tr[data-row='{point.get_attribute('data-row')}']")
    point.hover()
    assert "lit" in row.get_attribute("class").split()
    row.hover()
    assert "lit" in point.get_attribute("class").split()
    point.focus()
    page.keyboard.press("Enter")
    method = row.locator(".method .number").inner_text().strip()
    assert page.locator("#origin-title").inner_text().startswith(method)


def test_each_board_can_be_plotted_against_latency_and_memory(opened):
    page = opened()
    button = page.locator(".plot-this").nth(3)
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert page.locator(".plot-this[aria-pressed=true]").count() == 1
    board = page.locator("#plot-board option:checked").inner_text()
    assert button.get_attribute("aria-label") == f"Plot {board}"
    before = page.locator("#plot-svg .point").first.get_attribute("aria-label")
    page.locator("[name=x][value=memory]").check()
    assert "Peak memory ÷ vanilla" in page.locator("#plot-svg").inner_text()
    assert page.locator("#plot-svg .point").first.get_attribute("aria-label") == before
    assert state(page)["x"] == "memory"


def test_an_interval_that_goes_on_ends_in_an_arrow(opened, tmp_path):
    rows = list(small(methods=("vanilla", "vcc", "fourier")))
    ends = {"lat_ratio_ci_lo": 0.0, "lat_ratio_ci_hi": math.inf}
    open_ended = [row | (ends if row["method"] == "vcc" else {}) for row in rows]
    for given, arrows in ((rows, 0), (open_ended, 2)):
        page = opened(url=page_of(tmp_path / str(arrows), given))
        assert page.locator("#plot-svg path.bar").count() == arrows


def test_random_weights_are_plotted_without_quality(opened):
    page = opened("#weights=random")
    assert page.locator("#plot-title").inner_text() == "Peak memory against latency"
    assert page.locator("#plot-svg .point:not(.lost)").count() > 3


# --- every reader ------------------------------------------------------------------------------


def test_without_javascript_the_page_is_a_plain_table(opened):
    plain = opened(java_script_enabled=False)
    assert "JavaScript is off" in plain.locator("main").inner_text()
    assert not plain.locator("#controls").is_visible() and not plain.locator("#plot").is_visible()
    assert plain.locator("tbody tr:has(td)").count() > 100
    assert opened().locator("noscript").count() == 0


@pytest.mark.parametrize("width", [390, 768, 1300])
def test_no_page_is_wider_than_its_window(opened, width):
    page = opened(viewport={"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#boards .latency .number").first.click()
    box = page.locator("#origin").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width


def test_print_shows_the_tables_and_no_controls(opened):
    page = opened(color_scheme="dark")
    page.emulate_media(media="print")
    assert not page.locator("#filters").is_visible() and page.locator(ROWS).first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1300])
def test_axe_finds_no_violation(opened, scheme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = opened("#task=qmsum&length=16384", color_scheme=scheme,
                  viewport={"width": width, "height": 900})  # fmt: skip
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    page.locator("tr.failed .method .number").first.click()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_axe_finds_no_violation_where_no_row_fits(opened):
    from axe_playwright_python.sync_playwright import Axe

    page = opened("#source=embedded&weights=finetuned")
    assert page.locator(ROWS).count() == 0
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_a_browser_that_unpacks_nothing_says_so(browser, address):
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(address)
    page.wait_for_selector("#summary:has-text('unpack')")
    assert not page.locator("#controls").is_visible()
    page.close()


def test_hostile_rows_are_text_and_run_nothing(opened, tmp_path):
    url = page_of(tmp_path, hostile_rows())
    page = opened(url=url)
    assert page.locator("img").count() == 0
    assert HOSTILE in page.locator("#boards").inner_text()
    for number in page.locator("#boards .method .number").all():
        number.click()
        assert HOSTILE[:50] in page.locator("#origin").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.keyboard.press("Escape")
    page.locator("[data-sort=method]").first.click()
    page.fill("#search", "script")
    page.wait_for_url(lambda url: "q=script" in url)
    again = opened("#" + page.url.partition("#")[2], url=url)
    assert again.locator(ROWS).count() > 0
