"""RULER's tasks: fitted to a length, answers that follow from the text, official rows."""

import json
import re

import pytest

from bench.request import plugins
from tasks.base import Data, DataError
from tasks.generators.ruler import NIAH
from tasks.loading import truncation
from tasks.ruler import KINDS
from tests.tasks.words import Words


class Text(Words):
    """Words, marks and line ends, quickly."""

    def __init__(self):
        super().__init__(cut=lambda text: re.findall(r"\w+|[^\w\s]|\n", text))
        self.index = {}

    def __call__(self, text, *, add_special_tokens=True):
        ids = [self.index.setdefault(word, len(self.index) + 3) for word in self.cut(text)]
        return {"input_ids": [*ids, 1] if add_special_tokens else ids}


def ruler(member):
    return plugins.build(plugins.conf("task", f"ruler_{member}"))


def written(task, row, length, tokenizer=None):
    """The text of a row at a length, and the number of its tokens."""
    tokenizer = tokenizer or Text()
    encoded = task.encode(row, tokenizer, length)
    known = {number: word for word, number in tokenizer.index.items()}
    return " ".join(known.get(number, "") for number in encoded.ids), len(encoded.ids)


@pytest.mark.parametrize("member", KINDS)
def test_a_prompt_and_its_answer_fill_the_length_and_answers_do_not_depend_on_it(member):
    task = ruler(member)
    rows, longer = (task.load(Data(), 2, length, 0).rows for length in (4096, 8192))
    assert [row.references for row in longer] == [row.references for row in rows]
    for row in rows:
        _, tokens = written(task, row, 4096)
        # A unit is at most a document of four sentences.
        assert 4096 - 80 <= tokens + task.max_new_tokens <= 4096


@pytest.mark.parametrize("member", NIAH)
def test_each_needle_is_there_once(member):
    task = ruler(member)
    (row,) = task.load(Data(), 1, 2048, 0).rows
    text, _ = written(task, row, 2048)
    kind = NIAH[member]
    assert len(row.references) == kind.queries * kind.values == len(set(row.references))
    for answer in row.references:
        assert text.count(" ".join(Text().cut(answer))) == 1
    found = len(re.findall("One of the special magic", text))
    assert found == kind.keys * kind.values or kind.haystack == "needles"


def test_a_chain_can_be_followed():
    task = ruler("vt")
    (row,) = task.load(Data(), 1, 1024, 0).rows
    text, _ = written(task, row, 1024)
    asked = re.search(r"Find all variables that are assigned the value (\d+)", row.query)[1]
    values = {}
    for name, value in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", text):
        values[name] = values.get(value, value)
    assert {name for name, value in values.items() if value == asked} == set(row.references)


@pytest.mark.parametrize("length", [1024, 4096])
def test_common_words_are_the_most_common(length):
    task = ruler("cwe")
    (row,) = task.load(Data(), 1, length, 0).rows
    text, _ = written(task, row, length)
    listed = text.rpartition("Memorize the ones")[2].partition("Question")[0]
    counts = {
        word: len(re.findall(rf"\b{word}\b", listed)) for word in re.findall(r"[a-z]+", listed)
    }
    most = sorted(counts, key=counts.__getitem__)[-10:]
    assert set(most) == set(row.references)


@pytest.mark.parametrize("length", [512, 4096])
def test_the_frequencies_of_coded_words_fall(length):
    task = ruler("fwe")
    (row,) = task.load(Data(), 1, length, 0).rows
    text, _ = written(task, row, length)
    coded = re.findall(r"\b[a-z]{6}\b", text.partition("coded words .")[2].partition("Question")[0])
    counts = sorted(((coded.count(word), word) for word in set(coded)), reverse=True)
    assert tuple(word for _, word in counts[:3]) == row.references
    assert counts[0][0] > counts[1][0] > counts[2][0] > counts[3][0]


@pytest.mark.parametrize("member", ["qa_1", "qa_2"])
def test_the_documents_answer_the_question(member):
    task = ruler(member)
    for row in task.load(Data(), 5, 2048, 0).rows:
        text, _ = written(task, row, 2048)
        person = re.search(r"Where does (\w+) live", row.query)
        if not person:
            thing = re.search(r"owner of the (.*) live", row.query)[1]
            person = re.search(rf"The {thing} belongs to (\w+)", text)
        homes = re.findall(rf"{person[1]} lives at the ([\w ]+?) \.", text)
        assert homes == [row.references[0]]


def of_length(folder, *lengths, tokenizer="llama"):
    """A tree like that of the official scripts."""
    for length in lengths:
        place = folder / tokenizer / "synthetic" / f"{length}" / "data" / "niah_single_2"
        place.mkdir(parents=True)
        record = {"input": f"of {length}", "outputs": [f"{length}"]}
        (place / "validation.jsonl").write_text(json.dumps(record))


def test_the_rows_of_the_length_are_read(tmp_path):
    of_length(tmp_path / "ruler", 4096, 8192, 131072)
    task, data = ruler("niah_single_2"), Data("local", tmp_path)
    for length, found in ((4096, 4096), (8000, 4096), (8192, 8192), (1 << 20, 131072)):
        loaded = task.load(data, None, length, 0)
        assert [row.references for row in loaded.rows] == [(f"{found}",)]
        assert loaded.n_available == 1
    with pytest.raises(DataError, match=r"no rows for length=2048; .* has 4096, 8192, 131072"):
        task.load(data, None, 2048, 0)
    longest = tmp_path / "ruler/llama/synthetic/131072/data"
    assert task.load(Data("local", longest), None, 2048, 0).rows[0].references == ("131072",)
    of_length(tmp_path / "ruler", 4096, tokenizer="qwen")
    with pytest.raises(DataError, match=r"have the same name; expected one: data\.dir=FOLDER"):
        task.load(data, None, 4096, 0)


class Letters(Words):
    """A token for each character, with its place."""

    is_fast = True

    def __call__(self, text, *, add_special_tokens=True, return_offsets_mapping=False):
        places = [(i, i + 1) for i in range(len(text))]
        return {"input_ids": [ord(c) for c in text], "offset_mapping": places}

    def decode(self, ids, *, skip_special_tokens=True):
        return "".join(map(chr, ids))


@pytest.mark.parametrize(("depth", "lost"), [(0.1, False), (0.5, True), (0.9, False)])
def test_a_long_official_row_loses_its_middle_and_says_if_its_needle(tmp_path, depth, lost):
    folder = tmp_path / "ruler" / "niah_single_2"
    folder.mkdir(parents=True)
    text = "".join("The magic number is 4829137. " if i == 40 * depth else "Grass is green. "
                   for i in range(40))  # fmt: skip
    record = {"input": f"{text}What is the number?", "outputs": ["4829137"]}
    (folder / "validation.jsonl").write_text(json.dumps(record))
    task = ruler("niah_single_2")
    (row,) = task.load(Data("local", tmp_path), None, 512, 0).rows
    encoded = task.encode(row, Letters(), 512)
    seen = "".join(map(chr, encoded.ids))
    assert len(encoded.ids) == 512 - task.max_new_tokens and seen.endswith("What is the number?")
    assert encoded.tokens_in == len(record["input"])
    start, stop = encoded.removed
    assert seen == record["input"][:start] + record["input"][stop:]
    assert truncation.answer_removed(row, encoded.removed) == lost == ("4829137" not in seen)
    assert task.encode(row, Letters(), 4096).removed is None
    with pytest.raises(DataError, match=r"length=128 is too short .* takes 130"):
        task.encode(row, Letters(), 128)


ESSAYS = {
    "text": "The first essay.\n\nIt  says\nthat grass grows. " + "Why does it? It rains. " * 30
}
PARAGRAPHS = [f"Town {i} was founded by Ada{i}. It is a town." for i in range(40)]
SQUAD = {"version": "v2.0", "data": [
    {"title": "Towns", "paragraphs": [
        {"context": text, "qas": [
            {"question": f"Who founded town {i}?", "is_impossible": False,
             "answers": [{"text": f"Ada{i}"}, {"text": f"Ada{i}."}]},
            {"question": "Who left?", "is_impossible": True, "answers": []}]}
        for i, text in list(enumerate(PARAGRAPHS))[at : at + 4]]}
    for at in range(0, 40, 4)]}  # fmt: skip
HOTPOTQA = [{"question": f"Where is {i}?", "answer": f"place{i}",
             "context": [[f"Title {i} {j}", ["One. ", f"In place{i}."]] for j in range(10)]}
            for i in range(12)]  # fmt: skip
TEXTS = {
    "niah_single_2": ("PaulGrahamEssays.json", ESSAYS),
    "niah_multiquery": ("PaulGrahamEssays.json", ESSAYS),
    "qa_1": ("squad.json", SQUAD),
    "qa_2": ("hotpotqa.json", HOTPOTQA),
}


def texts(folder, member):
    name, content = TEXTS[member]
    (folder / "ruler").mkdir(exist_ok=True)
    (folder / "ruler" / name).write_text(json.dumps(content))
    return Data("local", folder)


@pytest.mark.parametrize("member", TEXTS)
def test_official_texts_make_rows(tmp_path, member):
    task, data = ruler(member), texts(tmp_path, member)
    loaded = task.load(data, 8, 700, 0)
    assert loaded == task.load(data, 8, 700, 0) != task.load(data, 8, 700, 1)
    assert loaded.rows[:2] == task.load(data, 2, 700, 0).rows and loaded.split == "test"
    for row in loaded.rows[-2:]:
        text, tokens = written(task, row, 700)
        assert 700 - 100 <= tokens + task.max_new_tokens <= 700
        found = [text.count(" ".join(Text().cut(answer))) for answer in row.references]
        assert found[0] > 0 and (member[:2] == "qa" or set(found) == {1})
        # The inputs of a method's process contain no answer to a question.
        if member[:2] == "qa":
            assert not row.asked.answers


def test_essays_begin_anew_and_documents_come_once(tmp_path):
    task, data = ruler("niah_single_2"), texts(tmp_path, "niah_single_2")
    text, _ = written(task, task.load(data, 1, 4096, 0).rows[0], 4096)
    assert text.count("The first essay . It says that grass grows .") > 1
    task, data = ruler("qa_1"), texts(tmp_path, "qa_1")
    (row,) = task.load(data, 1, 4096, 0).rows
    text, _ = written(task, row, 4096)  # all that there are, as in the official code
    assert text.count("was founded by") == 40 and row.references == ("Ada0", "Ada0.")
    near, _ = written(task, task.load(data, 1, 230, 0).rows[0], 230)
    found = set(re.findall(r"by Ada(\d+)", near))
    assert {"0", "1", "2", "3"} <= found and len(found) < 12  # those of its article come first
