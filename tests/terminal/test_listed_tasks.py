"""`bench ls tasks`: grouped, complete, and narrow enough for a terminal."""

from bench.cli import list_command
from bench.request import answering, plugins

TASKS = ("qmsum", "lra_listops")
READ = {
    "lra_text_easy": "above", "gist": "above", "ruler_niah_single_1": "above",
    "ruler_cwe": "at chance", "lra_pathx": "not tried",
}  # fmt: skip


def test_every_task_is_listed_under_its_benchmark(command):
    code, said, _ = command("ls", "tasks")
    assert code == 0
    assert max(map(len, said.splitlines())) <= 120
    listed = [line.split()[0] for line in said.splitlines() if line.startswith("  ")]
    assert sorted(listed) == sorted(plugins.available("task"))
    group = said[said.index("\nscrolls\n") :].split("\n\n")[0]
    assert "  qasper" in group and "zeroscrolls" not in group
    (line,) = (line for line in group.splitlines() if line.startswith("  qmsum "))
    words = "qmsum 1,257/272/281 16,384 rouge_geo_mean local hub? – MIT"
    assert line.split() == words.split()


def test_a_plugins_task_may_say_little():
    odd = {"length": "long", "n": {"train": "many"}, "hub": "there"}
    for conf, line in (
        ({}, "mine –/–/– – – embedded – –"), (odd, "mine many/–/– long – embedded – –"),
    ):  # fmt: skip
        record = {"name": "mine", **list_command.task_facts("mine", {"name": "mine", **conf})}
        assert list_command.task_table([record]).splitlines()[3].split() == line.split()


def test_each_task_names_the_models_that_answer_it():
    facts = {name: list_command.task_facts(name, plugins.conf("task", name)) for name in TASKS}
    assert [facts[name]["answers"] for name in TASKS] == ["text", "class"]
    text, classes = (facts[name]["models"].split() for name in TASKS)
    assert {"embedded", "embedded-llama", "t5-base"} <= {*text} and "lra-small" not in text
    assert {"embedded", "lra-small", "random-bert-base"} <= {*classes} and "t5-base" not in classes
    assert "embedded-roberta" in answering.models_for("span")


def test_a_task_tells_whether_shipped_weights_read_it(monkeypatch, tmp_path):
    read = {name: list_command.task_facts(name, plugins.conf("task", name)) for name in READ}
    assert {name: facts["embedded_weights"] for name, facts in read.items()} == READ
    assert read["ruler_niah_single_1"]["embedded_model"] == "embedded-llama"


def test_the_shipped_model_of_a_task_reads_it():
    by_task = plugins.conf("model", "embedded")["by_task"]
    for task, model in by_task.items():
        score = answering.scores(plugins.ROOT / plugins.conf("model", model)["path"])[task]
        assert answering.above(score), task
