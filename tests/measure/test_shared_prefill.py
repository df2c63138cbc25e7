"""Answers of several methods after one prefill, decoded as one batch: the ordinary path's."""

import json
from dataclasses import dataclass

import pytest
import torch

import bench
from bench.execution import arms
from bench.measure import quality
from bench.measure.quality import Asked
from bench.measure.shared_prefill import Pool
from bench.models.wrappers import Wrapped
from bench.request import plugins
from methods.base import Method
from methods.parts.eviction import EvictingCache
from methods.snapkv import SnapKV
from methods.vanilla import Vanilla
from tests import made

MOST_TOKENS = 16
SHAPE = ["model=embedded-llama", "length=256", "threads=1", "measure=quality"]
OF_TWO_LAYERS = {"quest": {"dense_layers": 0}, "sparq": {"budget": 60}, "kivi": {"residual": 64}}


def methods() -> list[Method]:
    """Each of the project's methods with a KV cache, and a second budget of one."""
    names = [
        name for name, written in plugins.usable("method").items()
        if "prefill" in written and "needs" not in written["facts"]
    ]  # fmt: skip
    built = [made.method(name, **OF_TWO_LAYERS.get(name, {})) for name in names]
    assert len(built) > 9
    return [Vanilla(), *built, SnapKV(budget=0.5)]


class Together:
    """A model, the texts of a cell, and what a pool answers."""

    def __init__(self, *words: str) -> None:
        cell = bench.compose(*SHAPE, *words)
        self.task = cell.build_task()
        self.family = arms.load(cell, arms.vanilla())
        self.family.is_over = lambda text: self.task.ended(text) != text
        self.asked = Asked.of(cell, self.task, self.family)

    def answered(self, methods, texts=(0, 1), most=99, vanilla=()):
        answers = {}
        pool = Pool(
            self.family, self.asked, "cpu", MOST_TOKENS,
            lambda setting, text, said: answers.update({(setting, text): said}), most,
            dict(enumerate(methods)), vanilla=set(vanilla),
            queue=[(text, i) for text in texts for i in range(len(methods))],
        )  # fmt: skip
        with torch.inference_mode():
            pool.run()
        return pool, answers

    def alone(self, method, text):
        self.family.method = method
        batch = arms.collate([self.asked.encoded[text]], "cpu")
        later = [torch.tensor([ids]) for ids in self.asked.later[text]]
        return self.family.converse(*batch, later, MOST_TOKENS)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Steps of a small model wait longer for a second thread than it saves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def together():
    return Together("task=longeval_lines", "n=3")


def test_every_method_answers_as_alone(together):
    several = methods()
    pool, answers = together.answered(several)
    assert not pool.dropped
    for (setting, text), said in answers.items():
        assert said == together.alone(several[setting], text)
    assert len(answers) == 2 * len(several)
    lengths = [len(together.family.tokenizer(said[0])["input_ids"]) for said in answers.values()]
    assert min(lengths) < MOST_TOKENS // 2 < max(lengths), "some rows end before others"


def test_turns_and_a_question_after_the_cache_are_answered_as_alone():
    together = Together("task=longeval_lines", "n=1", "question=after", "turns=3")
    several = methods()
    _, answers = together.answered(several, texts=[0])
    for (setting, text), said in answers.items():
        assert len(said) == 3 and said == together.alone(several[setting], text)
    assert len(answers) == len(several)


def test_a_continuation_has_the_likelihood_that_it_has_alone():
    words = ("task=perplexity", "task.continuation=32", "length=128", "n=2")
    together = Together(*words)
    several = methods()
    pool, answers = together.answered(several, vanilla={0})
    assert not pool.dropped and len(answers) == 2 * len(several)
    for (setting, text), (said,) in answers.items():
        encoded = together.asked.encoded[text]
        prompt = arms.collate([encoded], "cpu")
        tokens = torch.tensor([encoded.continuation])
        together.family.method = several[setting]
        with torch.inference_mode():
            (alone,) = quality.likelihoods(together.family, prompt, tokens, setting == 0)
        assert setting or said == alone
        for name, values in json.loads(alone).items():
            assert json.loads(said)[name] == pytest.approx(values, abs=1e-3)


@dataclass(frozen=True)
class Failing(Wrapped):
    """Raises an error at a step of decoding, as often as `errors` has some."""

    errors: tuple[list[Exception], ...] = ([],)

    def kv_cache(self, workload):
        cache, errors = FailingCache(self.method, workload), self.errors[0]
        cache.errors = errors
        return cache


class FailingCache(EvictingCache):
    def decode(self, query, key, value, call):
        if self.errors and call.layer == 1:
            raise self.errors.pop()
        return super().decode(query, key, value, call)


def test_a_setting_that_fails_leaves_the_others_alone(together):
    several = [Vanilla(), Failing(SnapKV(), ([ValueError("no")],)), SnapKV()]
    pool, answers = together.answered(several, texts=[0, 1, 2])
    assert pool.dropped == {1: "ValueError: no"}
    assert answers.keys() == {(setting, text) for setting in (0, 2) for text in range(3)}
    assert answers[2, 1] == together.alone(SnapKV(), 1)


def test_where_memory_runs_out_fewer_rows_decode_at_a_time(together):
    errors = [MemoryError() for _ in range(4)]
    several = [Vanilla(), Failing(SnapKV(), (errors,)), SnapKV(), SnapKV(budget=0.5)]
    pool, answers = together.answered(several)
    assert not errors and pool.most == 1 and not pool.dropped
    assert len(answers) == 8 and answers[1, 1] == answers[2, 1] == together.alone(SnapKV(), 1)
    several = [Vanilla(), Failing(SnapKV(), ([MemoryError("none left")] * 9,))]
    pool, answers = together.answered(several)
    assert pool.dropped == {1: "MemoryError: none left"} and len(answers) == 2
