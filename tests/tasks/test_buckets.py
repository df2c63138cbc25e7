"""Buckets of length: every row in one, edges at powers of two, scored by the metric itself."""

from bench.request import plugins
from tasks.metrics.buckets import Bucket, buckets, scores, upper_edge


def test_every_row_is_in_one_bucket():
    found = buckets([3000, 100, 4096, 9000])
    assert found == [
        Bucket(0, 512, (1,)), Bucket(2048, 4096, (0, 2)), Bucket(8192, 16384, (3,)),
    ]  # fmt: skip
    assert [bucket.name for bucket in found] == ["≤512", "≤4096", "≤16384"]
    assert buckets([]) == []
    assert [upper_edge(tokens) for tokens in (0, 512, 513)] == [512, 512, 1024]


def test_a_bucket_is_scored_by_the_metric_itself():
    task = plugins.build(plugins.conf("task", "qmsum"))

    def score(predictions, references):
        return task.score(predictions, references)["value"]

    answers, right = ["a b c", "a b", "x"], [["a b c"], ["a c"], ["y"]]
    # A geometric mean of means: that of one bucket isn't the mean over its rows.
    whole = score(answers, right)
    assert scores(score, [600, 700, 800], answers, right) == {"≤1024": (3, whole)}
    found = scores(score, [600, 5, 800], answers, right)
    assert found == {"≤512": (1, score(["a b"], [["a c"]])), "≤1024": (2, found["≤1024"][1])}
