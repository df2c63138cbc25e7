"""Decoding a forced answer: equal work in both arms, the costs of a cache, fidelity, checks."""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from bench.measure import decoding, memory
from bench.measure.decoding import DecodingArm, ForcedAnswers, copied, forced, greedy
from bench.measure.integrity import IntegrityError
from bench.measure.paired_timing import PairShare, sample_pairs
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.timed_call import Process
from bench.measure.two_arms import twin_arm
from bench.models.bart import BartFamily
from bench.models.decoder import DecoderFamily
from bench.models.t5 import T5Family
from bench.request.schema import MeasurePlan
from bench.rows import row_facts
from methods.base import Method, SequenceInfo
from methods.knorm import KNorm
from methods.parts.kv_cache import FullCache
from methods.vanilla import Vanilla

LENGTH, NEW = 40, 9


pytestmark = pytest.mark.usefixtures("alone")


def inputs(batch: int = 1) -> PerturbedInputs:
    draw = torch.Generator().manual_seed(0)
    batches = [(torch.randint(5, 60, (batch, LENGTH), generator=draw), SequenceInfo())
               for _ in range(2)]  # fmt: skip
    return PerturbedInputs(batches)


def pair(method: Method) -> tuple[DecodingArm, DecodingArm]:
    family, prompts = DecoderFamily.tiny(method), inputs()
    answers, process = ForcedAnswers(prompts, NEW - 1), Process()
    own, base = (DecodingArm(family, one, prompts, "cpu", process, answers=answers)
                 for one in (method, Vanilla()))  # fmt: skip
    return own, base


@torch.inference_mode()
def test_a_forced_greedy_answer_has_the_logits_that_chose_it():
    for kind in (DecoderFamily, T5Family, BartFamily):
        family = kind.tiny(Vanilla())
        prompt = inputs(2).restored(0)
        tokens, logits = greedy(family, prompt, NEW)
        assert tokens.shape == (2, NEW) and logits.shape[:2] == (2, NEW)
        assert torch.equal(forced(family, prompt, tokens), logits)
        assert torch.equal(forced(family, prompt, tokens[:, :1]), logits[:, :1])
        whole = family.logits(*prompt, tokens)
        assert torch.allclose(whole, logits, atol=1e-4)


@torch.inference_mode()
def test_both_arms_read_the_same_tokens_whatever_pairs_there_are():
    method, base = pair(KNorm(budget=8))
    read: dict[str, list[tuple[int, int, int]]] = {"M": [], "V": []}
    for name, arm in (("M", method), ("V", base)):
        step = arm._step
        arm._step = lambda d, token, name=name, arm=arm, step=step: (
            read[name].append((arm.number, arm.step, int(token))), step(d, token))[1]  # fmt: skip
    share, coin = PairShare(pairs=10, total=10, calls=3), SimpleNamespace(random=iter(
        [0.1, 0.9] * 9).__next__)  # fmt: skip
    samples = sample_pairs(method, base, share, coin, lambda done: None, aa_every=4)
    assert samples.order.count("A") == 3 and len(samples.pairs) == 10
    assert read["M"] == read["V"], "the steps of vanilla's own pairs, too"
    assert len(samples.rel_l2) == 30 and max(samples.rel_l2) > 0 and min(samples.top1) >= 0
    assert len(read["V"]) == 3 * (10 + 2 * 3)
    assert {number for number, *_ in read["V"]} == set(range(6)), "each of 8 steps"
    answers = {tuple(token for number, _, token in read["V"] if number == i) for i in range(5)}
    assert len(answers) == 5, "no answer repeats another's tokens"


@torch.inference_mode()
def test_the_decoder_beside_an_encoder_is_timed_with_a_method_in_the_encoder():
    for kind in (T5Family, BartFamily):
        family, prompts = kind.tiny(Vanilla()), inputs()
        answers = ForcedAnswers(prompts, NEW - 1)
        arm = DecodingArm(family, Vanilla(), prompts, "cpu", answers=answers)
        assert all(arm(i) > 0 for i in range(NEW + 1)) and arm.number == 1
        family.prefill = partial(silent, family, family.prefill)
        with pytest.raises(IntegrityError, match="never calls its own attention"):
            DecodingArm(family, Vanilla(), prompts, "cpu", answers=answers)(0)


def silent(family, prefill, *prompt):
    """A reading that doesn't run the method."""
    before, decoding = family.calls, prefill(*prompt)
    family.calls = before
    return decoding


@torch.inference_mode()
def test_a_step_that_ignores_its_token_is_a_cached_output(monkeypatch):
    family = DecoderFamily.tiny(Vanilla())
    prompts = inputs()
    answers = ForcedAnswers(prompts, NEW - 1)
    arm = DecodingArm(family, Vanilla(), prompts, "cpu", answers=answers)
    arm(0)
    logits = arm.decoding.logits
    arm.decoding.forward = lambda ids, sequence: logits
    with pytest.raises(IntegrityError, match="cached output"):
        arm(1)


@torch.inference_mode()
def test_both_processes_answer_the_supervisor_on_the_same_prompt_and_tokens():
    method, base = pair(Vanilla())
    for one in (method, base):
        one(0)
        one.reset()
    drawn = [base.drawn(2) for _ in range(2)]
    assert "prompt" in drawn[0] and drawn[0]["tokens"].shape == (1, 2)
    given = []
    for one in (base, method):
        one.read(drawn[0])
        given.append([one.answered(inputs) for inputs in drawn])
    assert given[0][0].keys() == {"0", "1"}
    for exact, mine in zip(*given, strict=True):
        assert all(torch.equal(exact[i], mine[i]) for i in exact)
    assert base.drawn(1).keys() == {"tokens"}, "the prompt is read once"


@torch.inference_mode()
def test_a_drift_shows_between_the_first_quarter_and_the_last():
    exact = torch.zeros(1, 8, 2)
    exact[..., 0] = 1.0
    logits = exact.clone()
    logits[0, 6:] = torch.tensor([0.0, 1.0])
    found = decoding.fidelity(exact, logits)
    kl = (torch.e - 1) / (torch.e + 1)  # of softmax(1, 0) from softmax(0, 1)
    assert found["decode_kl_first_quarter"] == 0
    assert found["decode_kl_last_quarter"] == pytest.approx(kl)
    assert found["decode_kl_mean"] == pytest.approx(kl / 4)
    quarters = [found[f"decode_top1_{part}"] for part in ("first_quarter", "agree", "last_quarter")]
    assert quarters == [1, 0.75, 0]


@torch.inference_mode()
def test_bytes_are_those_of_what_is_kept():
    prompt = inputs(2).restored(0)
    sizes = {}
    for method in (Vanilla(), KNorm(budget=8)):
        family = DecoderFamily.tiny(method)
        found = memory.columns(family, *prompt, NEW, iter((5000, 1000)).__next__)
        sizes[type(method)] = found
        assert found["kv_bytes_resident"] == 4000
    n, per_token = LENGTH + NEW - 1, 2 * 3 * 2 * 8 * 4 * 2  # K and V, layers, heads, d, bytes, B
    full, few = sizes[Vanilla], sizes[KNorm]
    assert full["kv_bytes_full"] == few["kv_bytes_full"] == n * per_token
    assert full["kv_entries"] == n and few["kv_entries"] == 8 + NEW - 1
    # Entries keep the number of their token, 8 bytes, and 2 · 8 numbers, in blocks of 64.
    assert full["kv_bytes_held"] == 64 * per_token * 9 // 8
    of_rows = 3 * 2 * 2 * 8  # each layer's first token and limit of each row
    assert few["kv_bytes_held_prefill"] == 8 * per_token * 9 // 8 + of_rows
    reads = [sum(first + i for i in range(1, NEW)) // (NEW - 1) for first in (LENGTH, 8)]
    rows = [each["kv_bytes_read_per_token"] for each in (full, few)]
    assert rows == pytest.approx([n * per_token / 2 for n in reads], rel=0.05)


def test_a_view_counts_as_all_that_it_keeps_from_being_freed():
    keys = torch.zeros(1, 2, 100, 8)
    cache = SimpleNamespace(held=lambda: [keys[:, :, -5:], keys[:, :, :5]])
    assert memory.held_bytes(cache) == keys.nbytes
    assert memory.entries(cache) is None


def test_a_cache_that_keeps_more_than_it_says_disagrees():
    agree = {"rss_peak_delta_bytes": 1 << 20, "alloc_peak_bytes": 1 << 20}
    held = {"kv_bytes_held": 100 << 20}
    for resident, expected in ((90, True), (105, True), (107, False)):
        columns = agree | held | {"kv_bytes_resident": resident << 20}
        assert row_facts.mem_agree(columns) is expected
        for reported, agrees in ((95.0, expected), (94.9, False), (105.1, False), (None, expected)):
            read = {"kv_read_reported_pct": reported}
            assert row_facts.mem_agree(columns | read) is agrees


@pytest.fixture
def cell():
    """A cell of two prompts, as far as timing needs one."""
    return SimpleNamespace(
        seed=0, new_tokens=NEW, device={"kind": "cpu"}, is_baseline=False,
        plan=MeasurePlan(pairs=6, budget_s=60, processes=1),
    )  # fmt: skip


def timed(family, cell, report=lambda *words: None):
    both = decoding.both_arms(cell, family, inputs(), Process(), report)
    with torch.inference_mode():
        return decoding.time_method(both)


@torch.inference_mode()
def test_one_process_times_steps_and_a_further_one_its_share(cell):
    stages = []

    def report(stage, done=0, total=0, note=""):
        stages.append((stage, done, total))

    family = DecoderFamily.tiny(KNorm(budget=8))
    result = timed(family, cell, report)
    assert len(result["timed"]["samples_ns"]) == len(result["timed"]["base_samples_ns"]) == 6
    assert result["fidelity"]["decode_kl_mean"] > 0 and result["timed"]["solo_median_ns"] > 0
    assert stages[0][0] == "warmup" and stages[-1] == ("decoding", 5, 6)
    family = DecoderFamily.tiny(KNorm(budget=8))
    calls = result["timed"]["calls_per_sample"]
    share = PairShare(pairs=2, total=8, calls=calls, process=1, done=6)
    further = decoding.both_arms(cell, family, inputs(), Process(), report).further(share)
    assert len(further["timed"]["samples_ns"]) == 2


@dataclass(frozen=True)
class Engine(Method):
    """Exact attention whose engine has its own cache, as a method or its own twin."""

    def kv_cache(self, workload):
        return FullCache(self.attend)

    def exact_twin(self):
        return Engine()


@torch.inference_mode()
def test_new_tokens_have_a_third_arm_where_the_twin_decodes_by_itself(cell):
    method, _ = pair(KNorm(budget=8))
    method(0)
    assert twin_arm(method) == (None, {"kernel": "torch"})
    family = DecoderFamily.tiny(Engine())
    result = timed(family, cell)
    engine = result["engine"]
    assert len(engine["base_samples_ns"]) == len(engine["samples_ns"]) > 0
    assert engine["kernel"] == "torch"


def test_vanilla_has_times_and_no_ratio(cell):
    cell.is_baseline = True
    family = DecoderFamily.tiny(Vanilla())
    result = timed(family, cell)
    assert result["timed"]["samples_ns"] and "base_samples_ns" not in result["timed"]
    assert "fidelity" not in result


class Outside(FullCache):
    """Counts its steps in a list that all caches share, and multiplies its output by the count."""

    steps: ClassVar[list[int]] = []

    def decode(self, query, key, value, call):
        self.steps.append(call.layer)
        output = super().decode(query, key, value, call)
        return output * len(self.steps)


class Deferred(FullCache):
    """Ranks the prompt's entries in the first step, once for all copies of it."""

    ranked: ClassVar[set[int]] = set()

    def prefill(self, query, key, value, call):
        self.ranked.discard(call.layer)
        return super().prefill(query, key, value, call)

    def decode(self, query, key, value, call):
        if call.layer not in self.ranked:
            self.ranked.add(call.layer)
            self.layers[call.layer].key.norm(dim=-1).argsort()
        return super().decode(query, key, value, call)


class Ahead(FullCache):
    """Ranks the prompt's entries while it is copied, or else in the first step."""

    ranked = False

    def __deepcopy__(self, memo):
        new = object.__new__(Ahead)
        vars(new).update(deepcopy(vars(self), memo) | {"ranked": True})
        new.layers[0].key.norm(dim=-1).argsort()
        return new

    def decode(self, query, key, value, call):
        if not self.ranked:
            self.layers[0].key.norm(dim=-1).argsort()
            self.ranked = True
        return super().decode(query, key, value, call)


@dataclass(frozen=True)
class Kept(Method):
    cache: type = FullCache

    def kv_cache(self, workload):
        return self.cache(self.attend)


@pytest.mark.parametrize(
    ("cache", "fault"),
    [(Outside, "answers otherwise"), (Deferred, "computes something else"),
     (Ahead, "computes something else"), (FullCache, None)],
)  # fmt: skip
@torch.inference_mode()
def test_what_is_kept_outside_a_cache_shows_when_the_cache_is_copied(cache, fault):
    method, _ = pair(Kept(cache))
    forced(method.family, method.answers.prompt, torch.zeros(1, 2, dtype=torch.long))
    if fault:
        with pytest.raises(IntegrityError, match=f"{fault} after its cache is copied"):
            method.check_copies()
    else:
        method.check_copies()


@pytest.mark.parametrize("kind", [DecoderFamily, T5Family])
@torch.inference_mode()
def test_each_answer_begins_as_after_its_prompt(kind):
    family, prompts, tokens = kind.tiny(Vanilla()), inputs(2), torch.arange(NEW).repeat(2, 1) + 5
    answers = ForcedAnswers(prompts, NEW - 1)
    arm = DecodingArm(family, Vanilla(), prompts, "cpu", answers=answers)
    exact = forced(family, answers.prompt, tokens).unbind(1)
    for _ in range(2):
        for i in range(NEW):
            arm(i)
        decoding = arm._begun()
        assert torch.equal(decoding.logits, exact[0])
        for token, logits in zip(tokens.unbind(1), exact[1:], strict=False):
            assert torch.equal(decoding.step(token[:, None]), logits)
    assert len(answers.answers) > 1 and torch.equal(arm.kept.logits, exact[0])


def test_a_copy_keeps_what_is_shared_and_shares_the_model():
    family, block = DecoderFamily.tiny(Vanilla()), torch.arange(12.0)
    views, step = [block[:4], block[2:].view(5, 2)], partial(family.prefill, block)
    new_views, new_step, model = copied([views, step, family.model])
    assert model is family.model and new_step.func.__self__ is family
    assert new_step.args[0].untyped_storage().data_ptr() == new_views[0].data_ptr()
    new_views[0].zero_()
    assert new_views[1].tolist()[:2] == [[0, 0], [4, 5]]
    assert block.tolist() == list(range(12))
