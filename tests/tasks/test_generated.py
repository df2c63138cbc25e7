"""GraphWalks, BABILong, InfiniteBench and the associative needle: the answers follow from the text,
and official rows are read."""

import json
import re
from random import Random

import pytest

from tasks import metrics
from tasks.base import Data, DataError
from tasks.check import check
from tasks.generated import most_units
from tasks.generators import babi
from tasks.generators.associations import FACTS
from tests.made import task as build
from tests.tasks.test_ruler import Text, written

LITTLE = set("who a the is has been to in of by at and on can s t isn whose".split())


@pytest.mark.parametrize("per_unit", [1, 7, 40])
@pytest.mark.parametrize("fixed", [10, 333])
def test_as_many_units_as_fit(per_unit, fixed):
    calls = []

    def tokens(units):
        calls.append(units)
        return fixed + per_unit * units + units % 3  # units differ in size

    units = most_units(tokens, 4000)
    assert 4000 - max(40, per_unit + 2) <= tokens(units) <= 4000 and len(calls) < 12


def test_the_answer_of_a_graph_can_be_walked_to():
    task, depths = build("graphwalks"), set()
    for row in task.load(Data(), 12, 4096, 0).rows:
        text, tokens = written(task, row, 4096)
        assert 4096 - 80 < tokens + task.max_new_tokens <= 4096
        graph = text.partition("operate on :")[2]
        edges = re.findall(r"(\w{10}) - > (\w{10})", graph)
        assert len(edges) > 100
        if "parents" in row.query:
            node = re.search(r"node (\w+)", row.query)[1]
            found = {a for a, b in edges if b == node}
        else:
            start, depth = re.search(r"node (\w+) with depth (\d)", row.query).groups()
            depths.add(depth)
            seen = found = {start}
            for _ in range(int(depth)):
                found = {b for a, b in edges if a in found} - seen
                seen = seen | found
        assert found == set(row.references) and 1 <= len(found) <= 30
    assert len(depths) > 1


@pytest.mark.parametrize("kind", babi.LABELS)
def test_babi_answers_are_labels_and_varied(kind):
    samples = [babi.sample(kind, Random(i)) for i in range(60)]
    labels = set(babi.LABELS[kind])
    assert all(set(answer.split(",")) <= labels for _, _, answer in samples)
    assert len({answer for _, _, answer in samples}) >= 2
    task = build(f"babilong_{kind}")
    (row,) = task.load(Data(), 1, 512, 0).rows
    text, _ = written(task, row, 512)
    assert "< / context >" in text


def test_things_are_where_they_were_carried():
    for seed in range(40):
        facts, question, answer = babi.sample("qa2", Random(seed))
        place, holder, where = {}, {}, {}
        for fact in facts:
            person, *_, last = fact[:-1].split()
            thing = next((one for one in babi.THINGS if one in fact), None)
            if thing is None:
                place[person] = last
            elif last == "there":
                holder[thing] = person
            else:
                holder.pop(thing)
            where.update({one: place[who] for one, who in holder.items()})
        assert where[re.search(r"the (\w+)\?", question)[1]] == answer


def test_hidden_keys_are_found():
    for member in ("passkey", "number", "kv_retrieval"):
        task = build(f"infinitebench_{member}")
        for row in task.load(Data(), 3, 1024, 0).rows:
            text, _ = written(task, row, 1024)
            answer = " ".join(Text().cut(row.references[0]))
            assert text.count(answer) == (1 if member == "kv_retrieval" else 2)
            assert task.score([f"{row.references[0]}, or 1."], [row.references])["value"] == 100


def test_a_needle_shares_no_word_with_its_question():
    for fact, question in FACTS.items():
        words = [set(re.findall(r"\w+", text.lower())) - LITTLE for text in (fact, question)]
        assert not words[0] & words[1]
    task = build("associative_needle")
    for row in task.load(Data(), 3, 1024, 0).rows:
        assert written(task, row, 1024)[0].count(row.references[0]) == 1


OFFICIAL = {
    "graphwalks": ("graphwalks.jsonl",
        {"prompt": "a -> b …", "answer_nodes": ["b"], "problem_type": "bfs"}, "bfs-0000", ("b",)),
    "babilong_qa1": ("qa1.jsonl",
        {"input": "Ann went.", "question": "Where is Ann?", "target": "kitchen"}, "0000",
        ("kitchen",)),
    "infinitebench_passkey": ("passkey.jsonl",
        {"id": 7, "context": "The pass key is 12345.", "input": "What is it?", "answer": ["12345"]},
        "7", ("12345",)),
    "ruler_niah_single_2": ("niah_single_2/validation.jsonl",
        {"index": 0, "input": "text with 123\nWhat? The number is", "outputs": ["123"],
         "length": 9, "answer_prefix": " The number is"}, "0", ("123",)),
    "mrcr": ("2needle_mrcr.jsonl",
        {"prompt": json.dumps([{"role": "user", "content": "Write a poem."},
                               {"role": "user", "content": "The first, after x1."}]),
         "answer": "x1Roses", "random_string_to_prepend": "x1"}, "0000", ("x1Roses",)),
}  # fmt: skip


def official(folder, name, **change):
    """The task, and its benchmark's folder with one record."""
    file, record, *_ = OFFICIAL[name]
    task = build(name)
    path = folder / task.benchmark / file
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record | change))
    return task, Data("local", folder)


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_rows(name, tmp_path):
    *_, row_id, answers = OFFICIAL[name]
    task, data = official(tmp_path, name)
    (row,) = task.load(data, None, 4096, 0).rows
    assert (row.id, tuple(row.references)) == (row_id, answers)
    assert task.score([answers[0]], [row.references])["value"] in (0, 100)
    assert task.encode(row, Text(), 4096).ids


def test_an_empty_set_is_an_answer_of_a_graph(tmp_path):
    task, data = official(tmp_path, "graphwalks", answer_nodes=[])
    (row,) = task.load(data, None, 4096, 0).rows
    assert row.references == ()
    assert task.score([task.perfect(row)], [row.references])["value"] == 100
    assert task.constants([row])
    assert not check(task, Text(), data).failures


def test_conversations_of_so_many_needles_are_taken(tmp_path):
    _, record, *_ = OFFICIAL["mrcr"]
    for number in (2, 8):
        folder = tmp_path / "mrcr" / f"{number}needle"
        folder.mkdir(parents=True)
        lines = [json.dumps({**record, "n_needles": number})] * number
        (folder / f"{number}needle_mrcr.jsonl").write_text("\n".join(lines))
    data = Data("local", tmp_path)
    assert len(build("mrcr").load(data, None, 4096, 0).rows) == 10
    rows = build("mrcr", needles=8).load(data, None, 4096, 0).rows
    assert [row.id for row in rows] == [f"8needle-{at:04d}" for at in range(8)]
    with pytest.raises(DataError, match="no file of needles=4; accepted: 2, 8"):
        build("mrcr", needles=4).load(data, None, 4096, 0)


def test_an_answer_must_begin_as_asked():
    task = build("mrcr")
    right = metrics.retrieval.References(["x1Roses are red"], labels=["x1"])
    assert task.score(["Roses are red"], [right])["value"] == 0
    assert task.score(["x1Roses are red"], [right])["value"] == 100
    assert 0 < task.score(["x1Roses"], [right])["value"] < 100
