"""Exact attention by the engine that runs the method, as a third arm."""

import random
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from bench.measure.paired_timing import PairShare
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.timed_call import Arm
from bench.measure.two_arms import TwoArms, twin_arm
from bench.models.bert import BertFamily
from bench.rows.comparison import Comparison
from bench.rows.derived_columns import to_engine, to_vanilla
from bench.rows.row_facts import engine_only
from bench.status import Verdict
from methods import kernels
from methods.base import Method, SequenceInfo
from methods.parts.dense import DenseAttention
from methods.vanilla import Vanilla


@dataclass(frozen=True)
class Twin(Method):
    """Exact attention that its engine makes fast, as a twin, or as a method with such a twin."""

    runs: bool = True

    def exact_twin(self) -> Method | None:
        return Twin() if self.runs else None


class HasTwin(Twin):
    def exact_twin(self) -> Method:
        return Twin(self.runs)


def arm(method: Method) -> Arm:
    family = BertFamily.tiny(method)
    batches = [(torch.randint(5, 60, (1, 40)), SequenceInfo()) for _ in range(4)]
    inputs = PerturbedInputs(batches)
    return Arm(family, method, inputs, "cpu")


@torch.inference_mode()
def test_the_third_arm_is_vanilla_itself_where_torch_ran():
    method = arm(DenseAttention(kernel="torch"))
    method(0)
    assert twin_arm(method, 2) == (None, {"kernel": "torch"})


@pytest.mark.skipif(kernels.available() is not None, reason=f"{kernels.available()}")
@torch.inference_mode()
def test_the_third_arm_is_native_where_the_method_was():
    method = arm(DenseAttention(kernel="native"))
    method(0)
    twin, columns = twin_arm(method, 2)
    assert twin is not None and twin.method == DenseAttention(kernel="native")
    assert columns == {"kernel": kernels.name()}


@torch.inference_mode()
def test_exact_attention_that_cannot_run_on_the_engine_is_a_reason():
    method = arm(HasTwin(runs=False))
    twin, columns = twin_arm(method, 2)
    assert twin is None and "exact attention on torch" in columns["reason"]


@pytest.mark.usefixtures("alone")
def test_a_fast_engine_alone_is_never_a_faster_method(monkeypatch):
    """A method that takes as long as exact attention by its own engine, on a clock of the test."""
    noise = random.Random(0)

    def call(self: Arm, i: int, drawn: object = None) -> int:
        self.waits.append(0)
        self.faults.append(0)
        return int((1e8 if type(self.method) is Vanilla else 6e7) * noise.gauss(1, 0.01))

    monkeypatch.setattr(Arm, "__call__", call)
    cell, share = SimpleNamespace(seed=0), PairShare(40, 60, 1, twin_pairs=20)
    own, base, twin = (arm(one) for one in (HasTwin(), Vanilla(), Twin()))
    reported: list[tuple[int, int]] = []

    def report(stage: str, done: int, total: int, note: str) -> None:
        reported.append((done, total))

    timed = TwoArms(own, base, cell, report).timed(twin, share)
    vanilla = to_vanilla(Comparison(**timed["timed"]), 0)
    engine = Comparison(**timed["engine"], kernel="native avx512 float32")
    engine = to_engine(engine, vanilla, 0)
    assert reported[-1] == (59, 60) and sorted(reported) == reported
    assert set(engine.pair_order) == {"M", "V"}
    assert vanilla.verdict == Verdict.FASTER
    assert engine.verdict in (Verdict.SAME, Verdict.UNDECIDED)
    assert engine_only(vanilla.columns("lat") | engine.columns("engine"))
