"""`bench ls tasks`: grouped, complete, and narrow enough for a terminal."""

from bench.cli.main import main
from bench.request import fitting, plugins
from bench.terminal import task_table

TASKS = ("qmsum", "lra_listops")


def test_every_task_is_listed_under_its_benchmark(capsys):
    try:
        main(["ls", "tasks"])
    except SystemExit as end:
        assert end.code == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 120
    listed = [line.split()[0] for line in said.splitlines() if line.startswith("  ")]
    assert sorted(listed) == sorted(plugins.available("task"))
    group = said[said.index("\nscrolls\n") :].split("\n\n")[0]
    assert "  qasper" in group and "zeroscrolls" not in group
    (line,) = (line for line in group.splitlines() if line.startswith("  qmsum "))
    words = "qmsum 1,257 / 272 / 281 16,384 rouge_geo_mean text local hub? MIT"
    assert line.split() == words.split()


def test_a_plugins_task_may_say_little():
    record = {"name": "mine", **task_table.facts("mine", {"name": "mine"})}
    line = task_table.table([record]).splitlines()[3]
    assert line.split() == "mine – / – / – – – – embedded –".split()
    odd = {"name": "mine", "length": "long", "n": {"train": "many"}, "hub": "there"}
    line = task_table.table([{"name": "mine", **task_table.facts("mine", odd)}]).splitlines()[3]
    assert line.split() == "mine many / – / – long – – embedded –".split()


def test_each_task_names_the_models_that_answer_it():
    facts = {name: task_table.facts(name, plugins.conf("task", name)) for name in TASKS}
    assert [facts[name]["answers"] for name in TASKS] == ["text", "class"]
    text, classes = (facts[name]["models"].split() for name in TASKS)
    assert {"embedded", "embedded-llama", "t5-base"} <= {*text} and "lra-small" not in text
    assert {"embedded", "lra-small", "random-bert-base"} <= {*classes} and "t5-base" not in classes
    assert "embedded-roberta" in fitting.models_for("span")
