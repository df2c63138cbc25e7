"""The task perplexity: stretches of documents, their two parts, and the figures."""

import json
import math
import zipfile

import pytest

from bench.errors import RequestError
from bench.rows.store import documents
from tasks import metrics
from tasks.base import Data, DataError, NoEmbeddedRows
from tasks.check import check
from tests import made
from tests.conftest import REAL_ROWS
from tests.tasks.words import Words

TEXT = "".join(f"word{i:04d} " for i in range(400))


class Starting(Words):
    """Adds a token before each text, unless the call disables it."""

    bos_token_id = 2


def local(folder, *more, **given):
    task = made.task("perplexity", continuation=4, **given)
    return task.load(Data("local", folder), *more)


def test_embedded_stretches_are_of_the_help_and_begin_in_many_topics():
    task = made.task("perplexity")
    loaded = task.load(Data(), None, 1024, 0)
    assert loaded.n_available == len(loaded.rows) == len({row.id for row in loaded.rows})
    stretches = [row.document[row.start : row.stop] for row in loaded.rows]
    assert {len(text) for text in stretches} == {5 * 1024} and len(set(stretches)) == len(stretches)
    topics = [row.id.partition("@")[0] for row in loaded.rows]
    keys = documents(loaded.rows)
    assert len(set(keys)) == len(set(topics)) < len(topics)
    assert len(set(keys[: len(set(keys))])) == len(set(keys))  # one of each topic comes first
    assert [row.id for row in task.load(Data(), None, 1024, 1).rows] != [r.id for r in loaded.rows]


def test_local_documents_are_text_files_of_which_no_short_rest_is_read(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "a.md").write_text(TEXT[:109])
    (tmp_path / "more" / "b.txt").write_text(TEXT[:104])
    (tmp_path / "short.txt").write_text(TEXT[:49])
    (tmp_path / "c.py").write_text(TEXT)
    loaded = local(tmp_path, 3, 10, 0)
    assert [row.id for row in loaded.rows] == ["a.md@0", "more/b.txt@0", "a.md@50"]
    assert loaded.n_available == 4 and loaded.split == "test"
    assert local(tmp_path, 3, 10, 1) == loaded
    with pytest.raises(DataError, match="no document has the 5,000 characters that length=1000"):
        local(tmp_path, None, 1000, 0)
    with pytest.raises(DataError, match=r"length=4 is too short .*task.continuation=4"):
        local(tmp_path, None, 4, 0)
    (tmp_path / "a.md").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"a.md: not UTF-8 at byte 3"):
        local(tmp_path, None, 10, 0)
    with pytest.raises(DataError, match=r"no file \*.txt or \*.md"):
        local(tmp_path / "nowhere", None, 10, 0)
    with pytest.raises(RequestError, match="continuation=0; it takes 1 or more"):
        made.task("perplexity", continuation=0)


def test_the_last_tokens_of_the_length_are_scored_and_a_text_begins_once(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    task = made.task("perplexity", continuation=4)
    row = task.load(Data("local", tmp_path), 1, 10, 0).rows[0]
    for words in (Words(cut=list), Starting(cut=list, start=True)):
        begun = [2] if words.start else []
        read = task.encode(row, words, 10)
        whole = words.spell([*read.ids, *read.continuation][len(begun) :], "")
        assert whole == TEXT[: 10 - len(begun)]
        assert read.ids[: len(begun)] == begun and 2 not in read.continuation
        assert (len(read.ids), len(read.continuation)) == (6, 4) and read.tokens_in == 6
        assert not any(read.vip)
    with pytest.raises(DataError, match=r"row a.txt@0 has 4 tokens, no more than task.contin"):
        task.encode(row, Words(), 4)


def test_documents_of_zero_scrolls_are_read_once_and_without_their_prompts(tmp_path):
    head = "You are given a report.\n\nReport:\n"
    record = {"input": f"{head}{TEXT}\n\nSummary:\n", "document_start_index": len(head),
              "document_end_index": len(head) + len(TEXT)}  # fmt: skip
    (tmp_path / "zero_scrolls").mkdir()
    with zipfile.ZipFile(tmp_path / "zero_scrolls" / "qmsum.zip", "w") as file:
        lines = [json.dumps({"id": f"q{i}", **record}) for i in range(3)]
        file.writestr("qmsum/validation.jsonl", "\n".join(lines))
    task = made.task("perplexity_qmsum", continuation=4)
    rows = task.load(Data("local", tmp_path), None, 100, 0).rows
    assert len(rows) == len(TEXT) // 500 and len(set(documents(rows))) == 1
    assert rows[0].id == "q0@0" and rows[0].document == TEXT
    with pytest.raises(NoEmbeddedRows):
        task.load(Data(), None, 100, 0)


@pytest.mark.skipif(not REAL_ROWS.is_dir(), reason="no real rows (../shared/data)")
@pytest.mark.parametrize(("member", "count"), [("gov_report", 7), ("qmsum", 18), ("squality", 13)])
def test_real_documents(member, count):
    task = made.task(f"perplexity_{member}")
    data = Data("local", REAL_ROWS)
    rows = task.load(data, None, 2048, 0).rows
    assert len(set(documents(rows))) == count
    assert not check(task, Words(), data).failures


def test_figures_are_means_over_tokens_and_rows():
    task = made.task("perplexity", continuation=4)
    one = json.dumps({"nll": [1, 2, 3, 6], "kl": [0, 0, 0, 0.4], "equal": [1, 1, 1, 0]})
    other = json.dumps({"nll": [1, 1, 1, 1], "kl": [0, 0, 0, 0], "equal": [1, 1, 1, 1]})
    figures = task.score([one, other], [(), ()])
    assert figures["value"] == figures["nats_per_token"] == 2 and not task.higher_is_better
    assert figures["perplexity"] == pytest.approx(math.exp(2))
    assert figures["nats_per_token_first_quarter"] == 1
    assert figures["nats_per_token_last_quarter"] == 3.5
    assert figures["kl"] == 0.05 and figures["kl_last_quarter"] == 0.2
    assert figures["top1_agree"] == 0.875
    assert task.score_each([one, other], [(), ()]) == [3, 1]
    for wrong in ("7", '{"kl": [1]}', '{"nll": [1], "more": [1]}', "text"):
        with pytest.raises(ValueError):
            metrics.each("perplexity", "nats_per_token", [wrong], [()])
