"""Tasks of lm-evaluation-harness as tasks here: names and messages always, scores where the package
is installed."""

import json
import pickle
from dataclasses import replace

import pytest

from bench.request import compose, plugins
from bench.sweep.grid import SweepGrid
from tasks.base import Data, DataError, NoEmbeddedRows
from tasks.check import check
from tasks.lm_eval import Answers
from tasks.loading import lm_eval_package as package

ROWS = [
    {"text": f"The lamp of house {at} is {colour}.", "answer": colour}
    for at, colour in enumerate(("red", "green", "blue", "grey", "white"))
]
GENERATED = """
task: lamps
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
fewshot_split: test
doc_to_text: "{{text}}\\nWhich colour?"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}
  - {metric: bleu, aggregation: bleu, higher_is_better: true}
"""


@pytest.fixture
def folder(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "lamps.yaml").write_text(GENERATED.replace("ROWS", str(rows)))
    (tmp_path / "repeated.yaml").write_text("task: repeated\ndataset_path: json\nrepeats: 8\n")
    (tmp_path / "many.yaml").write_text("group: many\ntask: [lamps, repeated]\n")
    return tmp_path


def built(name: str, folder=None, **given):
    conf = plugins.conf("task", f"lm_eval:{name}")
    return plugins.build({**conf, "include_path": folder and str(folder), **given})


# --- without the package ------------------------------------------------------------------------


def test_a_task_of_the_package_is_named_after_a_colon():
    request = compose.compose(["task=lm_eval:ruler_vt", "model=embedded-llama"])
    assert request["task"]["name"] == "lm_eval:ruler_vt" and request["task"]["member"] == "ruler_vt"
    assert request["data"]["source"] == "hub"
    assert request["task"]["tokenizer"] == request["model"]["path"]
    local = compose.compose(["task=lm_eval:mine", "data.dir=/x"])
    assert (local["data"]["source"], local["task"]["include_path"]) == ("local", "/x")


def test_a_sweep_takes_several_of_them():
    words = ["task=lm_eval:a,ruler_vt,lm_eval:b", "model=embedded,embedded-llama"]
    points = [point.request for point in SweepGrid.of(words).points()]
    assert [each["task"]["name"] for each in points][::2] == ["lm_eval:a", "ruler_vt", "lm_eval:b"]
    for each in points:
        assert each["task"].get("tokenizer", each["model"]["path"]) == each["model"]["path"]
    assert SweepGrid.of(["task=lm_eval:a,lm_eval:b"]).base["data"]["source"] == "hub"


@pytest.mark.parametrize(
    "words",
    ["run task=lm_eval:ruler_vt model=embedded-llama", "plan task=lm_eval:ruler_vt",
     "fetch lm_eval:ruler_vt", "lm_eval ls tasks"],
)  # fmt: skip
def test_the_absent_package_is_one_line_with_its_command(words, monkeypatch, refused):
    monkeypatch.setattr(package, "PACKAGE", "no_such_package")
    package.config_of.cache_clear()
    told = "is not installed: pip install 'longctx-bench[lm-eval]'"
    assert told in refused(*words.split())


def test_its_task_alone_asks_which(capsys):
    with pytest.raises(DataError, match="task=lm_eval:NAME"):
        plugins.build(plugins.conf("task", "lm_eval")).load(Data("hub"), 1, 64, 0)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"output_type": "multiple_choice"}, "scores the likelihood of given texts"),
        ({"output_type": "loglikelihood_rolling"}, "bench lm_eval run --model longctx-bench"),
        ({"group": "all", "task": ["a", {"task": "b"}]}, "choose one of a, b"),
        ({"class": "x.y"}, "is a Python class of its own"),
        ({"unsafe_code": True}, "runs code that the model writes"),
        ({"doc_to_image": ["image"]}, "asks about images"),
        ({"generation_kwargs": {"do_sample": True, "temperature": 0.5}}, "samples its answers"),
        ({"repeats": 4}, "asks each question 4 times"),
    ],
)
def test_what_is_not_read_is_said(config, told):
    assert told in package.refusal({"task": "one", **config})
    assert package.refusal({"task": "one", "generation_kwargs": {"do_sample": True}}) == ""


def test_where_rows_and_tokenizer_lie_is_in_no_key(tmp_path):
    from bench.request.cell import Cell

    requests = [compose.compose(["task=lm_eval:mine", f"data.dir={tmp_path}/{one}"])
                for one in ("a", "b")]  # fmt: skip
    one, other = (Cell.with_rows(request, "test", "0" * 64) for request in requests)
    assert one.task["include_path"] != other.task["include_path"] and one.key == other.key


def test_answers_keep_their_document_between_processes():
    answers = Answers(["red"], {"text": "x"}, package.Origin("lamps"), ["\n"])
    copy = pickle.loads(pickle.dumps(answers))
    assert copy == ("red",) and vars(copy) == vars(answers)


# --- with the package ---------------------------------------------------------------------------


@pytest.fixture
def installed():
    pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
    package.config_of.cache_clear()


def test_prompts_limit_and_metric_are_the_tasks_own(folder, installed):
    task = built("lamps", folder)
    assert (task.metric, task.max_new_tokens, task.higher_is_better) == ("exact_match", 12, True)
    loaded = task.load(Data("local", folder), 3, 512, 0)
    assert (len(loaded.rows), loaded.n_available, loaded.split) == (3, 5, "test")
    assert loaded.rows[1].document == "The lamp of house 1 is green.\nWhich colour?"
    assert loaded.rows[1].references == ("green",) and not loaded.rows[1].query
    shots = built("lamps", folder, num_fewshot=1).load(Data("local", folder), 3, 512, 0)
    assert shots.rows[0].document.endswith(loaded.rows[0].document)
    assert shots.rows[0].document.count("Which colour?") == 2 and shots.sha256 != loaded.sha256
    assert built("lamps", folder, num_fewshot=1).load(Data("local", folder), 3, 512, 0) == shots
    assert built("lamps", folder, max_new_tokens=3).max_new_tokens == 3


def test_a_decoder_gets_the_ids_of_lm_eval_and_its_stop_strings(folder, installed):
    from lm_eval.models.huggingface import HFLM

    from tests.tasks.test_decoder_prompts import TOKENIZERS

    task = replace(built("lamps", folder), decoder="plain")
    assert task.stop == ("\n",) and package.until({}) == ["\n\n"]
    for kind in ("bos", "no-bos"):
        theirs = HFLM.__new__(HFLM)
        theirs.custom_prefix_token_id = None
        theirs.tokenizer, theirs.add_bos_token, theirs.backend = TOKENIZERS[kind][0], None, "causal"
        for row in task.load(Data("local", folder), 3, 512, 0).rows:
            assert list(task.encode(row, theirs.tokenizer, 512).ids) == theirs.tok_encode(row.text)


def test_the_beginning_of_an_answer_is_in_the_assistant_s_turn(folder, installed):
    from tests.tasks.test_decoder_prompts import ASSISTANT, TOKENIZERS

    text = (folder / "lamps.yaml").read_text().replace("task: lamps", "task: prefixed")
    (folder / "prefixed.yaml").write_text(text + '\ngen_prefix: "It is"\n')
    task = replace(built("prefixed", folder), decoder="chat")
    (row,) = task.load(Data("local", folder), 1, 512, 0).rows
    tokens, _ = TOKENIZERS["chat"]
    shown = tokens.decode(task.encode(row, tokens, 512).ids)
    assert row.ending == "It is" and shown.endswith(f"{ASSISTANT}It is")


def test_scores_are_those_of_lm_eval(folder, installed):
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    said = ["red\nand more", "Green", "nothing", "grey", ""]

    class Says(LM):
        def generate_until(self, requests, disable_tqdm=False):
            return [text.split("\n")[0] for text in said]

        def loglikelihood(self, requests):
            raise AssertionError

        loglikelihood_rolling = loglikelihood

    manager = TaskManager(include_defaults=False, include_path=str(folder))
    theirs = simple_evaluate(Says(), tasks=["lamps"], task_manager=manager, bootstrap_iters=0)
    task = built("lamps", folder)
    rows = task.load(Data("local", folder), None, 512, 0).rows
    references = [row.references for row in rows]
    ours = task.score(said, references)
    assert ours["exact_match,none"] == theirs["results"]["lamps"]["exact_match,none"] == 0.6
    assert ours["value"] == 60.0 and "bleu,none" not in ours
    assert task.score_each(said, references) == [100.0, 100.0, 0.0, 100.0, 0.0]


def test_a_metric_that_is_no_mean_is_refused(folder, installed):
    with pytest.raises(DataError, match=r"bleu is no mean.*task\.metric=exact_match"):
        built("lamps", folder, metric="bleu").load(Data("local", folder), 3, 512, 0)
    with pytest.raises(DataError, match=r"no metric .f1.*task\.metric=exact_match, bleu"):
        built("lamps", folder, metric="f1").load(Data("local", folder), 3, 512, 0)


def test_it_keeps_the_contract(folder, installed):
    from tests.conformance.test_tasks import whole_words

    report = check(built("lamps", folder), whole_words("<s>", None), Data("local", folder))
    assert not report.failures and not report.not_checked


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("lamp", "unknown task 'lm_eval:lamp'. Did you mean lm_eval:lamps?"),
        ("repeated", "asks each question 8 times"),
        ("many", "is a group of tasks: choose one of lamps, repeated"),
    ],
)
def test_what_cannot_be_read_is_one_line(name, told, folder, installed):
    with pytest.raises(DataError, match=told) as refused:
        built(name, folder).load(Data("local", folder), 3, 512, 0)
    assert "\n" not in str(refused.value)


def test_data_that_is_not_here_names_the_command(folder, installed):
    config = "task: away\ndataset_path: nobody/nothing\ntest_split: test\n"
    (folder / "away.yaml").write_text(config)
    with pytest.raises(DataError, match="`bench fetch lm_eval:away` gets nobody/nothing"):
        built("away", folder).load(Data("local", folder), 3, 512, 0)
    with pytest.raises(NoEmbeddedRows):
        built("lamps", folder).load(Data(), 3, 512, 0)
    with pytest.raises(DataError, match="no split 'train'; lm_eval scores test"):
        built("lamps", folder).load(Data("local", folder, "train"), 3, 512, 0)
