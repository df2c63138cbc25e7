"""In a headless Chromium: the choice of a method, curves, search, columns, CSV and print."""

from __future__ import annotations

import csv
import re

import pytest

from tests.reports.leaderboard.conftest import page_of
from tests.reports.leaderboard.pages import decoded_rows, small

ONE = {"kinds": (("hub", "finetuned"),)}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    rows = [*decoded_rows(), *(row | {"row_id": row["row_id"] + "q"} for row in small(**ONE))]
    return page_of(tmp_path_factory.mktemp("decoder"), rows)


def cells(page, method):
    line = page.locator(".matrix tbody tr").filter(has=page.locator(f"th :text-is('{method}')"))
    return [" ".join(text.split()) for text in line.locator("td").all_inner_texts()]


def test_the_first_screen_says_which_method_is_best_within_each_budget(opened, decoder):
    page = opened(url=decoder)
    assert page.locator("#choice").bounding_box()["y"] < 300
    best = [" ".join(text.split()) for text in page.locator(".matrix .best tr").all_inner_texts()]
    assert best[0].startswith("Best, at most 1 % lost") and "vcc budget=0.5 ×0.900 100 %" in best[0]
    assert "budget=0.25" not in " ".join(best)  # cheaper, but it loses half of the score
    answer = page.locator("#answer").inner_text()
    assert "at least 99 % of vanilla’s quality, " in answer and "vcc" in answer
    assert cells(page, "vanilla")[1:4] == ["100 %", "×1.00", "×1.00"]


def test_each_cost_of_a_decoder_can_be_the_aim_and_memory_has_a_cap(opened, decoder):
    page = opened(url=decoder)
    offered = page.locator("#choice-aim option").all_inner_texts()
    assert offered == ["time", "latency", "time per token", "whole answer", "peak memory",
                       "KV held", "KV read"]  # fmt: skip
    page.select_option("#choice-aim", "tpot")
    assert "×0.800" in page.locator(".matrix .best").inner_text()
    assert "TPOT" in page.locator(".matrix thead").inner_text()
    page.select_option("#choice-aim", "held")
    assert "vcc budget=0.5 ×0.500" in " ".join(page.locator(".matrix .best").inner_text().split())
    page.select_option("#choice-cap", "0.25")
    assert "none fits" in page.locator(".matrix .best").inner_text()
    assert "aim=held&cap=0.25" in page.url


def test_a_task_with_vanilla_at_chance_names_no_best_method(opened, tmp_path):
    rows = [row | {"chance": 95.0, "at_chance": True} for row in small(**ONE)]
    rows = [row | ({} if row["method"] == "vanilla" else {"base_ci_lo": 1.0}) for row in rows]
    page = opened(url=page_of(tmp_path, rows))
    assert page.locator(".matrix .best .none").all_inner_texts() == ["not ranked", "not ranked"]
    assert page.locator(".matrix strong").count() == 0
    assert "not ranked: vanilla at chance" in page.locator("#boards .title").inner_text()


def test_an_oracle_is_a_dashed_line_and_no_choice(opened, tmp_path):
    """Better and smaller than the method next to it, with a faster answer but a slower prompt: it
    would extend the front."""
    cache = next(decoded_rows())
    better = {"value": 90.0, "tpot_ratio": 0.5, "tpot_ratio_ci_lo": 0.49, "tpot_ratio_ci_hi": 0.51,
              "answer_ratio": 0.5, "answer_ratio_ci_lo": 0.49, "answer_ratio_ci_hi": 0.51,
              "kv_held_ratio": 0.1, "lat_ratio": 3.0}  # fmt: skip
    oracle = cache | better | {"method": "oracle_topk", "row_id": "oracle"}
    found = []
    for name, more in (("with", [oracle]), ("without", [])):
        page = opened(url=page_of(tmp_path / name, [*decoded_rows(), *more]))
        plot = page.locator("#plot-svg")
        found.append({
            "answer": page.locator("#answer").inner_text(),
            "matrix": page.locator("#matrix").inner_text(),
            "front": plot.locator(".front").get_attribute("d").count("H"),
            "ceilings": (plot.locator(".ceiling").count(), plot.locator(".shape.oracle").count()),
            "methods": " ".join(page.locator("#boards tbody").all_inner_texts()),
            "ranks": sorted(page.locator("#boards td.rank").all_inner_texts()),
        })  # fmt: skip
    shown, plain = found
    for name in ("answer", "matrix", "front"):
        assert shown[name] == plain[name], name
    assert shown["ceilings"] == (1, 1) and plain["ceilings"] == (0, 0)
    assert sorted(["–", *plain["ranks"]]) == shown["ranks"]
    assert "oracle_topk·0.5 (oracle)" in shown["methods"]
    page = opened(url=page_of(tmp_path / "origin", [*decoded_rows(), oracle]))
    page.locator("#boards button", has_text="(oracle)").first.click()
    assert "an oracle, which shows a ceiling" in page.locator("#origin-body").inner_text()


def test_vanilla_is_on_every_board_whatever_is_searched_for(opened):
    page = opened()
    page.fill("#search", "vcc 1,024")
    page.wait_for_url(lambda url: "q=vcc" in url)
    for body in page.locator("#boards tbody").all():
        names = body.locator(".method .number").all_inner_texts()
        assert sorted({name.strip() for name in names}) == ["vanilla", "vcc"]
    assert all("1,024 tokens" in text for text in page.locator("#boards .title").all_inner_texts())


def test_methods_and_columns_can_be_chosen_by_keyboard(opened):
    page = opened()
    assert cells(page, "fourier")
    page.locator("#methods summary").focus()
    page.keyboard.press("Enter")
    page.get_by_label("fourier", exact=True).focus()
    page.keyboard.press("Space")
    assert page.evaluate("document.activeElement.type") == "checkbox"
    assert "fourier" not in page.locator("#boards").inner_text()
    assert not cells(page, "fourier")
    page.locator("#columns summary").click()
    page.get_by_label("Output error", exact=True).uncheck()
    assert page.locator("#boards th.error").count() == 0
    again = opened("#" + page.url.partition("#")[2])
    assert again.locator("#boards th.error").count() == 0 and not cells(again, "fourier")


def test_filters_offer_only_what_exists_beside_the_others(opened):
    page = opened()
    assert (
        page.locator("#filter-host").count()
        and not page.locator("#filter-model option").count() < 2
    )
    page.select_option("#filter-weights", "finetuned")
    assert page.locator("#filter-source option").all_inner_texts() == ["all", "local"]
    page.locator("[role=tab]:has-text('lra')").click()
    assert page.locator("#filter-task").count() == 0  # one task only


def test_curves_over_length_show_a_point_for_each_method_and_length(opened):
    page = opened("#tab=lra&weights=finetuned&device=cpu")
    assert page.locator("#curves").is_visible()
    page.locator("#curves-y [value=memory]").check()
    said = [point.get_attribute("aria-label") for point in page.locator("#curves .point").all()]
    assert any(re.match(r"vcc at 16,384 tokens: Peak memory ×0\.\d+\.", text) for text in said)
    assert page.url.endswith("y=memory")


def test_the_table_is_saved_as_csv_in_which_no_text_is_a_formula(opened, tmp_path):
    rows = [row | {"code_sha": "=1+1", "metric": '-"f1",\n'} for row in small(**ONE)]
    page = opened(url=page_of(tmp_path, rows))
    with page.expect_download() as download:
        page.locator("#csv").click()
    with open(download.value.path(), newline="") as file:
        saved = [*csv.DictReader(file)]
    assert len(saved) == page.locator("#boards tr[data-row]").count() == len(rows)
    by_method = {line["method"]: line for line in saved}
    assert by_method["vcc"]["paper_arxiv"] == "2305.04241"
    assert by_method["vcc"]["code"] == "'=1+1" and by_method["vcc"]["metric"].startswith("'-")
    assert float(by_method["vcc"]["lat_ratio"]) < 1 and by_method["vcc"]["row_id"]


def test_a_print_names_what_it_shows(opened):
    page = opened("#tab=scrolls&task=qmsum&length=1024")
    page.emulate_media(media="print")
    said = page.locator("#printed").inner_text()
    for words in ("Benchmark scrolls", "task qmsum", "length 1024", "Sorted by rank, ascending"):
        assert words in said
    assert "AMD EPYC 9454P" in page.locator("#machines").inner_text()
    assert "Machine h2-" in page.locator(".matrix caption").inner_text()


def test_many_rows_are_drawn_in_portions(opened):
    page = opened()
    drawn = page.locator("#boards tr[data-row]").count()
    page.locator("#more").click()
    assert page.locator("#boards tr[data-row]").count() > drawn
    while page.locator("#more").count():
        page.locator("#more").click()
    total = int(page.locator("#count").inner_text().split()[0])
    assert page.locator("#boards tr[data-row]").count() == total
