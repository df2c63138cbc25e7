"""Every experiment composes and plans at both of its scales, and states its cost and expected
result; all tables and figures of the papers exist."""

import functools
import itertools
import re
from collections.abc import Iterator

import pytest

from bench.request import plugins
from bench.request.overrides import check_overrides
from bench.request.schema import MEASURES
from bench.rows.store import Store
from bench.status import PlanState
from bench.sweep import plan as planning
from bench.sweep.grid import SweepGrid
from bench.sweep.plan import Plan, plan
from reports.results_page import REFERENCE
from tests.conftest import ROOT

PAPERS = {
    "vcc": ("table1", "table2", "table3", "table7", "fig1", "fig5"),
    "iceformer": ("table1", "table2", "table3", "fig4", "fig5"),
    "fourier": ("table1", "table2", "table3", "table4", "fig1", "fig3"),
    "bigbird": ("qa", "classification", "summarization"),
    "lra": ("table2",),
}
NAMES = [f"{paper}_{part}" for paper, parts in PAPERS.items() for part in parts]
EXPERIMENTS = sorted(plugins.available("experiment"))
SMALL = sorted(path.stem for path in (ROOT / "conf" / "scale" / "small").glob("*.yaml"))
TWO_CORES_BYTES = 4 << 30
TWO_CORES_S = 45 * 60
TEXTS = ["narrativeqa", "quality", "gist", "longeval_lines"]
QUICKSTART = [*TEXTS, "lra_listops", "lra_text_easy", "lra_image", "lra_pathfinder_easy"]


@pytest.fixture(autouse=True, scope="module")
def estimates_from_sizes_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "REFERENCE", ROOT / "nowhere")
        yield


@functools.cache
def plan_of(name: str, scale: str | None = None) -> Plan:
    return plan(words_of(name, scale))


def words_of(name: str, scale: str | None = None) -> list[str]:
    """Without the weights that its header has a user fetch, on those of the shipped decoder."""
    overlay = [f"experiment={name}", *([f"scale={scale}"] if scale else [])]
    shipped = ["model=embedded-llama"] if "bench fetch --model" in header_of(name) else []
    return [*overlay, "results=nowhere", "threads=2", *shipped]


def at_both_scales(name: str) -> list[Plan]:
    return [plan_of(name), plan_of(name, "small")]


def header_of(name: str, scale: str | None = None) -> str:
    """An overlay's leading comment."""
    folder = f"scale/{scale}" if scale else "experiment"
    text = (ROOT / "conf" / folder / f"{name}.yaml").read_text()
    return "\n".join(line for line in text.splitlines() if line.startswith("#"))


def test_each_table_and_figure_has_its_experiment_and_its_small_scale():
    assert set(NAMES) <= set(EXPERIMENTS)
    assert set(NAMES) <= set(SMALL) <= set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_plans_as_it_stands(name):
    planned = plan_of(name)
    assert planned.cells and not planned.of(PlanState.REFUSED), planned.cells[0].reason


@pytest.mark.parametrize("name", SMALL)
def test_it_plans_at_the_small_scale_and_fits_two_cores(name):
    whole, small = at_both_scales(name)
    assert small.cells and not small.of(PlanState.REFUSED), small.cells[0].reason
    assert max(p.bytes for p in small.cells) < TWO_CORES_BYTES
    assert sum(p.seconds for p in small.cells if p.runs) < TWO_CORES_S
    longest = [max(p.request["length"] for p in planned.cells) for planned in (small, whole)]
    assert longest[0] <= longest[1] and len(small.cells) <= len(whole.cells)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_its_headers_say_what_to_run_what_it_costs_and_what_to_expect(name):
    header = header_of(name)
    for part in (f"bench plan experiment={name}", f"bench run -m experiment={name}", "# cost: ",
                 "# expect: "):  # fmt: skip
        assert part in header, f"{name}: its header has no '{part}'"
    if name in SMALL:
        small = header_of(name, "small")
        assert f"bench run -m experiment={name} scale=small" in small and "# cost: " in small
    if name in NAMES:
        assert re.search(r"\(arXiv \d{4}\.\d{5}\), (Table|Figure)", header.replace("\n# ", " "))


@pytest.mark.parametrize("name", ["vcc_table1", "vcc_table2", "iceformer_fig5"])
def test_inputs_of_printed_times_have_the_printed_length(name):
    """Rows of these tasks are shorter, and their times would answer no printed cell."""
    assert all(point.request["fill"] for point in plan_of(name).cells)


@pytest.mark.parametrize("name", NAMES)
def test_methods_tasks_and_models_of_every_point_fit(name):
    """Parameters that method and task have, and answers that are scored only by a head for them,
    which else only the child that has the model would refuse."""
    for point in itertools.chain(*(planned.cells for planned in at_both_scales(name))):
        plugins.build(dict(point.request["method"]))
        task, model = plugins.build(dict(point.request["task"])), point.request["model"]
        kind = (model["config"] or {}).get("model_type", "t5")
        classes = kind in ("lra", "bert", "roberta")
        scored = MEASURES[point.request["measure"]].quality
        assert not task.labels or classes, point.overrides
        assert bool(task.labels) == classes or not scored, point.overrides


SIZES = ("device", "dtype", "length", "batch")
STAND_INS = {
    "model=t5-base": "model=random-t5-base",
    "model=t5-large": "model=random-t5-large",
    "model=bart-large": "model=random-bart-large",
    "model=FacebookAI/roberta-base": "model=random-roberta-base",
    "model=lmsys/vicuna-7b-v1.5-16k": "model=random-llama-7b",
}
"""What has to be fetched → what stands for it here."""


def commands(header: str) -> list[str]:
    """The words of each `bench run -m` in a header, its loops unrolled."""
    text = re.sub(r"\\\n# +", "", header)
    found = []
    for line in text.splitlines():
        loop = re.search(r"for (\w+) in ([\w ]+); do", line)
        if not (asked := re.search(r"bench run -m ([^;]*?)(?:; done|   .*)?$", line)):
            continue
        values = loop[2].split() if loop else [""]
        found += [asked[1].replace(f"${loop[1]}", v) if loop else asked[1] for v in values]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_its_header_compose(name):
    """To their first points, where they choose more than a device and its inputs' sizes; all points
    of the experiment itself are in its plans."""
    asked = [command for command in commands(header_of(name)) if f"experiment={name}" in command]
    assert asked
    for command in {*asked} - {f"experiment={name}", f"experiment={name} scale=small"}:
        words = [STAND_INS.get(word, word) for word in command.split()]
        check_overrides(words)
        if {word.partition("=")[0] for word in words} <= {"experiment", *SIZES}:
            continue
        grid = SweepGrid.of(words)
        request = next(grid.points()).request
        plugins.build(dict(request["method"]))
        plugins.build(dict(request["task"]))
        if "recipe=" in command:
            recipe = re.search(r"recipe=(\w+)", command)[1]
            assert request["recipe"]["name"] == recipe
            task = re.search(r"^ *- override /task: (\w+)", recipe_text(recipe), re.M)[1]
            assert request["task"]["name"] == task, f"{command}: the recipe's is {task}"


def recipe_text(name: str) -> str:
    return plugins.available("recipe")[name].read_text()


def test_words_of_the_request_win_over_a_scale():
    cells = plan(["experiment=vcc_table2", "scale=small", "length=512", "task=qasper"]).cells
    assert {p.request["length"] for p in cells} == {512} and len(cells) == 3


def test_the_quickstart_is_all_methods_on_tasks_that_need_no_network():
    cells = plan_of("quickstart").cells
    assert {p.request["task"]["name"] for p in cells} == set(QUICKSTART)
    methods = {p.request["method"]["name"] for p in cells}
    assert methods == {"vanilla", "bigbird", "vcc", "iceformer", "fourier"}
    assert {p.request["data"]["source"] for p in cells} == {"embedded"}
    assert {p.request["model"]["weights"] for p in cells} == {"embedded"}
    assert not any(p.request["recipe"] for p in cells)
    assert {p.request["measure"] for p in cells} == {"quick"}
    rows = {p.request["task"]["name"]: p.request["n"] for p in cells}
    assert rows == {name: 256 if name.startswith("lra_") else 32 for name in QUICKSTART}
    given = ["experiment=quickstart", "n=64", "threads=2", "task=quality,lra_image"]
    assert {p.request["n"] for p in plan(given).cells} == {64}


def test_vanilla_is_above_chance_in_every_row_of_the_quickstart():
    rows = Store(REFERENCE).rows().to_pylist()
    found = {
        row["task"]: row["at_chance"]
        for row in rows
        if row["experiment"] == "quickstart" and row["method"] == "vanilla"
    }
    assert found == dict.fromkeys(QUICKSTART, False)
