"""A decoder whose cache is made before the question is read, and that is asked several times."""

from types import SimpleNamespace

import pytest
import torch

from bench.measure import memory
from bench.models.conversing import Conversing
from bench.models.decoder import DecoderFamily
from bench.models.t5 import T5Family
from methods.base import SequenceInfo
from methods.knorm import KNorm
from methods.snapkv import SnapKV
from methods.tova import TOVA
from methods.vanilla import Vanilla

LENGTH, START = 40, 30


def prompt() -> tuple[torch.Tensor, SequenceInfo]:
    ids = torch.randint(5, 60, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    vip = torch.zeros(1, LENGTH, dtype=torch.bool)
    vip[:, START:-3] = True
    return ids, SequenceInfo(vip=vip)


def family(method, **settings) -> DecoderFamily:
    made = DecoderFamily.tiny(method)
    made.tokenizer = SimpleNamespace(decode=lambda ids, **_: " ".join(map(str, ids.tolist())))
    for name, value in settings.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("method", [Vanilla(), SnapKV(budget=64), TOVA(budget=64)])
@torch.inference_mode()
def test_nothing_dropped_is_the_same_answer(method):
    before = family(method).prefill(*prompt())
    after = family(method, question_after=True).prefill(*prompt())
    assert torch.allclose(before.logits, after.logits, atol=1e-4)
    assert torch.equal(before.sequence.positions, after.sequence.positions)


@torch.inference_mode()
def test_the_question_comes_on_top_of_what_was_kept():
    for after, held in ((False, 10), (True, 10 + LENGTH - START)):
        made = family(KNorm(budget=10), question_after=after)
        decoding = made.prefill(*prompt())
        assert memory.entries(decoding.cache) == held
    costs = memory.columns(made, *prompt(), 5, None)
    per_token = 2 * 3 * 2 * 8 * 4  # K and V, layers, heads, d, bytes
    mean = held + (1 + 2 + 3 + 4) / 4
    assert costs["kv_bytes_read_per_token"] == mean * per_token, "not what the question read"


@torch.inference_mode()
def test_without_text_before_the_question_all_is_the_prompt():
    made = family(Vanilla(), question_after=True)
    ids, _ = prompt()
    for vip in (None, torch.ones_like(ids, dtype=torch.bool)):
        assert made.prefill(ids, SequenceInfo(vip=vip)).logits.shape == (1, 64)


@torch.inference_mode()
def test_each_turn_reads_all_that_came_before():
    made, (ids, sequence) = family(Vanilla()), prompt()
    questions = [torch.tensor([[7, 8, 9]]), torch.tensor([[11, 12]])]
    answers = [list(map(int, text.split())) for text in made.converse(ids, sequence, questions, 4)]
    assert len(answers) == 3
    read = ids
    for question, answer in zip([None, *questions], answers, strict=True):
        read = read if question is None else torch.cat((read, question), 1)
        whole = made.generate_ids(read, SequenceInfo(), 4)
        assert whole.tolist() == [answer]
        ends = made._ends()
        kept = [token for token in answer if token not in ends]
        read = torch.cat((read, torch.tensor([kept])), 1)


def test_a_family_with_an_encoder_is_not_asked_so():
    assert isinstance(DecoderFamily.tiny(Vanilla()), Conversing)
    assert not isinstance(T5Family.tiny(Vanilla()), Conversing)
