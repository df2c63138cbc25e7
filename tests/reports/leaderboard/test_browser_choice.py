"""In a headless Chromium: the choice of a method, curves, search, columns, CSV and print."""

import csv
import re

import pytest

from tests.reports.leaderboard.conftest import page_of
from tests.reports.leaderboard.pages import ONE, decoded_rows, small


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    rows = [*decoded_rows(), *(row | {"row_id": row["row_id"] + "q"} for row in small(**ONE))]
    return page_of(tmp_path_factory.mktemp("decoder"), rows)


def cells(page, method):
    line = page.locator(".matrix tbody tr").filter(has=page.locator(f"th :text-is('{method}')"))
    return [" ".join(text.split()) for text in line.locator("td").all_inner_texts()]


def test_the_first_screen_says_which_method_is_best_within_each_budget(opened, decoder):
    page = opened(url=decoder)
    assert page.locator("#choice").bounding_box()["y"] < 100
    labels = page.locator("#choice-form label").all_inner_texts()
    asked = [text.split("\n")[0].strip() for text in labels]
    assert asked == ["Family", "Model", "Length", "What matters", "Machine", "Memory at most"]
    best = [" ".join(text.split()) for text in page.locator(".matrix .best tr").all_inner_texts()]
    assert best[0].startswith("Best, at most 1 % lost") and "vcc budget=0.5 ×0.800 100 %" in best[0]
    assert "budget=0.25" not in " ".join(best)  # cheaper, but it loses half of the score
    answer = page.locator("#answer").inner_text()
    assert "at least 99 % of vanilla’s quality, " in answer and "vcc" in answer
    assert cells(page, "vanilla")[1:4] == ["100 %", "×1.00", "×1.00"]


def test_each_cost_of_a_decoder_can_be_the_aim_and_memory_has_a_cap(opened, decoder):
    page = opened(url=decoder)
    offered = page.locator("#choice-aim option").all_inner_texts()
    assert offered == ["time per token", "KV held", "latency", "whole answer", "peak memory",
                       "KV read"]  # fmt: skip
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
    assert page.locator("#filter-host").count()
    assert page.locator("#filter-model option").count() >= 2
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
    assert "machine AMD EPYC 9454P (h2-" in page.locator(".matrix caption").inner_text()


def test_many_rows_are_drawn_in_portions(opened):
    page = opened()
    drawn = page.locator("#boards tr[data-row]").count()
    page.locator("#more").click()
    assert page.locator("#boards tr[data-row]").count() > drawn
    while page.locator("#more").count():
        page.locator("#more").click()
    total = int(page.locator("#count").inner_text().split()[0])
    assert page.locator("#boards tr[data-row]").count() == total


def words_of(page):
    return " ".join(page.locator("#answer").inner_text().split())


def test_a_choice_without_a_measurement_gives_the_command(opened):
    page = opened("#family=encoder–decoder&of=t5-large&at=1024")
    hosts = page.locator("#choice-on option").all_inner_texts()
    assert len(hosts) == 2 and not any("not measured" in host for host in hosts)
    page = opened("#of=t5-large&at=999&aim=nonsense&on=nowhere")
    assert page.locator("#choice-at").input_value() != "999"


def test_a_machine_without_rows_of_the_model_is_offered_as_not_measured(opened, tmp_path):
    other = {"model": "t5-base", "host_id": "h2-0123456789abcdef", "cpu_model": "Other"}
    rows = [*small(**ONE), *(row | other | {"row_id": row["row_id"] + "o"} for row in small(**ONE))]
    page = opened("#of=t5-large", url=page_of(tmp_path, rows))
    page.select_option("#choice-on", "h2-01234567")
    assert "Other (h2-01234567): not measured" in page.locator("#choice-on").inner_text()
    assert "t5-large, 4,096 tokens, Other: not measured." in words_of(page)
    command = page.locator("#answer code").inner_text()
    assert command.startswith("bench run -m method=vanilla,") and "model=t5-large" in command
    assert "length=4096" in command and "measure=quick" in command


def test_cost_without_quality_is_shown_and_marked(opened, tmp_path):
    page = opened(url=page_of(tmp_path, small(kinds=(("embedded", "random"),))))
    assert "quality not measured. By latency alone, faster than vanilla: " in words_of(page)
    assert re.search(r"fourier ×0\.\d+ \(toy weights\)", words_of(page))
    assert "quality not measured" in page.locator(".matrix thead").inner_text()
    assert len(cells(page, "vcc")) == 3, "wins, latency and memory"


def test_tokens_alone_are_shown_without_quality(opened, tmp_path):
    """Also where another board of the choice has quality."""
    none = dict.fromkeys(("lat_ratio", "mem_ratio", "lat_median_ns", "lat_base_median_ns"))
    unscored = none | {"measure": "tokens", "value": None, "base_value": None}
    costs = dict.fromkeys(("tpot_ratio", "answer_ratio", "tpot_median_ns", "answer_median_ns"))
    uncosted = none | costs | {"measure": "quality"}
    alone = [row | unscored for row in decoded_rows()]
    scored = [row | uncosted | {"row_id": row["row_id"] + "s"} for row in decoded_rows()]
    for name, more, words in (
        ("both", scored, "quality and time per token not measured together. By time per token"),
        ("alone", [], "quality not measured. By time per token alone, faster than vanilla: vcc"),
    ):
        page = opened(url=page_of(tmp_path / name, [*alone, *more]))
        assert words in words_of(page) and "measure=decoding" in words_of(page)
    assert page.locator("#plot-title").inner_text() == "KV held against time per token"


def test_wins_by_the_engine_are_counted_apart(opened, tmp_path):
    kept = {"value_diff_ci_lo": -0.01, "value_diff_ci_hi": 0.01, "lat_ratio": 0.7,
            "lat_ratio_ci_lo": 0.69, "lat_ratio_ci_hi": 0.71, "lat_verdict": "faster"}  # fmt: skip
    same = {"engine_ratio": 1.0, "engine_ratio_ci_lo": 0.99, "engine_ratio_ci_hi": 1.01,
            "engine_verdict": "same"}  # fmt: skip
    more = {"vanilla": {}, "vcc": kept, "iceformer": kept | same}
    rows = [row | more[row["method"]] for row in small(methods=tuple(more), **ONE)]
    rows = [row | {"value": row.get("base_value", row["value"])} for row in rows]
    page = opened(url=page_of(tmp_path, rows))
    assert "vcc on 1 of 1 task, iceformer on 1 of 1 task by its engine only." in words_of(page)
    assert "+1 by engine" in cells(page, "iceformer")[0]


def test_a_search_covers_all_benchmarks(opened):
    page = opened()
    page.fill("#search", "h200 1,024 iceformer")
    page.wait_for_url(lambda url: "q=h200" in url)
    titles = page.locator("#boards .title").all_inner_texts()
    assert {title.split(" · ")[0] for title in titles} >= {"qmsum", "lra_text", "longeval_lines"}
