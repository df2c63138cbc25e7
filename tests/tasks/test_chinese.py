"""LongBench's Chinese metrics: values of the official functions (jieba 0.42.1, rouge 1.0.1), and
the message if jieba isn't installed."""

import importlib.util
from dataclasses import replace

import pytest

from bench.request import plugins
from tasks import metrics
from tasks.base import Data, DataError
from tests.tasks.test_prompted import folder

installed = pytest.mark.skipif(
    importlib.util.find_spec("jieba") is None,
    reason="no jieba, which finds the words: pip install -e '.[chinese]'",
)
TEXT = "王老师说:“明天下雨,会议改在3.5号下午2点举行。”"
CASES = {
    "whole words": ("qa_f1_zh", "北京大学", ["北京"], 0.0),
    "of the bag of words": ("qa_f1_zh", "他在广州和上海", ["上海广州"], 57.1429),
    "punctuation and case go": ("qa_f1_zh", "《红楼梦》,LongBench。", ["红楼梦 longbench"], 80.0),
    "the best reference": ("qa_f1_zh", "上海", ["广州", "上海"], 100.0),
    "nothing": ("qa_f1_zh", "。", ["书"], 0.0),
    "in order": ("rouge_zh", "会议改在下午举行。", [TEXT], 33.3333),
    "punctuation stays": ("rouge_zh", "会议。", ["会议"], 66.6667),
    "nothing for rouge": ("rouge_zh", "", [TEXT], 0.0),
}


@installed
@pytest.mark.parametrize("case", CASES)
def test_official_values(case):
    metric, prediction, references, value = CASES[case]
    found = metrics.compute("longbench/dureader", metric, [prediction], [references])
    assert found["value"] == found[metric] == pytest.approx(value, abs=1e-4)


@installed
def test_rows_are_read_and_scored(tmp_path):
    record = {"input": "问题", "context": "文章", "answers": ["北京"], "_id": "1"}
    data = folder(tmp_path, record, name="multifieldqa_zh.jsonl")
    task = plugins.build({**plugins.conf("task", "longbench_multifieldqa_zh"),
                          "prompt": "{context} {input}"})  # fmt: skip
    (row,) = task.load(data, None, 512, 0).rows
    assert task.score(["北京"], [row.references])["value"] == 100


def test_a_missing_package_is_named_before_anything_runs(monkeypatch, tmp_path, command, refused):
    absent = replace(metrics.METRICS["longbench/rouge_zh"], package="no_such_package")
    monkeypatch.setitem(metrics.METRICS, "longbench/rouge_zh", absent)
    line = r"needs the package no_such_package: pip install 'longctx-bench\[chinese\]'"
    task = plugins.build({**plugins.conf("task", "longbench_vcsum"), "prompt": "{context}"})
    with pytest.raises(DataError, match=f"longbench_vcsum: metric rouge_zh {line}"):
        task.load(Data("local", tmp_path), None, 512, 0)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"prediction": "a", "reference": "b"}')
    assert "needs the package no_such_package" in refused("score", "longbench_vcsum", pairs)
    code, out, _ = command("check", "task=longbench_vcsum")
    assert code == 0 and "not checked: metric rouge_zh needs" in out
