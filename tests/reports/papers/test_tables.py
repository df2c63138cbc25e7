"""Published tables: the names in their definitions, and the text around the cells."""

from fnmatch import fnmatch

import pytest

from bench.errors import RequestError
from bench.request import compose, plugins
from bench.request.overrides import check_overrides
from bench.request.schema import MEASURES
from bench.rows.store import Store
from reports.papers.bench_commands import cell_commands, commands
from reports.papers.command import FORMATS
from reports.papers.definitions import load_definitions
from reports.papers.measured import StoredRows
from reports.papers.printed import load_printed
from reports.papers.view import page
from tests.made import row
from tests.reports.papers.published_rows import ratio, scored, table, unfused

ALL = load_definitions()
TABLES = [definition.name for definition in ALL]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_names_what_there_is(name):
    definition = load_definitions([name])[0]
    tables = {cell.table for cell in load_printed(definition.paper)}
    assert set(definition.parts) <= tables
    for method in definition.methods.values():
        assert bool(method.method) != bool(method.cannot), method
        if method.method:
            own = [method.params, *method.by_task.values(), *method.by_size.values()]
            given = {name for params in own for name in params}
            assert given <= set(plugins.conf("method", method.method)), method
    for task in definition.tasks.values():
        assert bool(task.task) != bool(task.cannot), task
        if task.task:
            plugins.conf("task", task.task)
        if task.recipe:
            overridden = plugins.conf("recipe", task.recipe)["defaults"]
            assert {"override /task": task.task} in overridden
    assert set(definition.reference) <= set(definition.methods)
    for names in definition.averages.values():
        assert set(names) <= set(definition.tasks)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_with_nothing_measured_prints_what_is_published(name):
    found = table(name)
    assert found.cells
    verdict = {cell.verdict for cell in found.cells}
    assert verdict <= {"no row yet", "baseline", "cannot"}
    assert all(c.reason for c in found.cells if c.verdict == "cannot")
    text = FORMATS["md"](found)
    for cell in found.cells:
        if cell.printed.value is not None and not cell.printed.approximate:
            assert cell.printed.text in text
    assert "nothing yet" in text


@pytest.mark.parametrize("name", TABLES)
def test_each_cell_that_was_not_run_has_a_command_that_composes(name):
    found = table(name)
    per_cell = cell_commands(found)
    for cell in found.cells:
        if cell.verdict == "no row yet":
            assert per_cell[id(cell)].startswith("bench run ")
    for _, command in commands(found):
        first, second, *words = command.split()
        assert (first, second) == ("bench", "run")
        words = [word for word in words if word != "-m"]
        assert check_overrides(words)
        measure = next(w for w in words if w.startswith("measure=")).partition("=")[2]
        assert measure in MEASURES


def test_one_command_composes_whole():
    words = dict(commands(table("fourier_table3")))["BART-large"].split()[2:]
    request = compose.compose([word for word in words if word != "-m"])
    assert request["method"]["name"] == "vanilla" and request["n"] is None


def test_weights_that_are_trained_from_scratch_come_from_a_recipe():
    [words] = [c for _, c in commands(table("lra_leaderboard")) if "recipe=lra_listops " in c]
    request = compose.compose(words.split()[2:])
    assert request["recipe"]["name"] == "lra_listops" and request["method"]["m"] == 2
    assert request["task"]["name"] == "lra_listops" and request["length"] == 2000
    assert request["model"]["config"]["hidden_size"] == 512
    assert all("task=" in command for _, command in commands(table("lra_speed")))


@pytest.mark.parametrize("name", ["lra_leaderboard", "fourier_table1"])
def test_a_command_for_scores_trains_a_model_of_the_papers_size(name):
    """So that its row counts: `like` lists the accepted models."""
    found = table(name)
    like = found.definition.models["lra-base"].like
    asked = set()
    for _, command in commands(found):
        recipes = command.split("recipe=")[1].split()[0].split(",")
        words = [w for w in command.split()[2:] if not w.startswith(("-m", "recipe=", "method"))]
        asked |= {(f"recipe={recipe}", *words) for recipe in recipes}
    for words in asked:
        model = compose.compose(words)["model"]["name"]
        assert any(fnmatch(model, pattern) for pattern in like), words


def test_a_table_has_its_cells_hardware_configuration_and_rows_without_a_cell(tmp_path, snapshot):
    """In the paper's shape too, if it is not too wide."""
    here = {"cpu_model": "Test CPU", "torch": "2.9", "host_id": "abcdef0123456789"}
    rows = [scored(75.1), ratio(0.54), unfused(), ratio(0.7, length=1024, method_params="{}")]
    Store(tmp_path).append(
        row | here | {"row_id": str(i) * 32, "created_utc": "2026-11-20T00:00:00+00:00"}
        for i, row in enumerate(rows)
    )
    snapshot("vcc_table1", FORMATS["md"](table("vcc_table1", tmp_path)))
    wide = [grid.caption for grid in page(table("vcc_table2")).sections[0].grids]
    assert not any("shape" in caption for caption in wide)


def test_cells_that_look_wrong_as_printed_have_a_note():
    text = FORMATS["md"](table("vcc_table3"))
    assert "looks wrong as printed: same model/length/runtime in Table 2 prints em 5.0" in text
    assert "5.9 \\[1\\]" in text


def test_cells_off_a_plot_are_marked():
    text = FORMATS["md"](table("iceformer_table1"))
    assert "≈ 2.92 s = ×1.000" in text and "≈ 0.38 s |" in text


def test_words_filter_the_rows_of_a_table_and_leave_its_baselines(tmp_path):
    Store(tmp_path).append(
        row(method=method, task=task)
        for method in ("vanilla", "vanilla_eager", "vcc")
        for task in ("hotpotqa", "quality")
    )
    tables = {"vcc"}, {"hotpotqa", "quality"}
    for words, n in ((("task=quality",), 3), (("method=vcc",), 6), (("task=quality", "seed=0"), 3)):
        assert len(StoredRows([tmp_path], *tables, words).rows) == n, words
    with pytest.raises(RequestError, match="Did you mean quality"):
        StoredRows([tmp_path], *tables, ("task=qualty",))
