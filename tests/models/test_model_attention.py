"""LongT5 and LED, whose encoders' attention isn't exact: with vanilla they are Hugging Face's own
models, and no other method runs in them."""

from typing import ClassVar

import pytest
import torch

from bench.models.led import LEDFamily
from bench.models.longt5 import LongT5Family
from methods.base import SequenceInfo, refusal
from methods.longformer.longformer import Longformer
from methods.vanilla import Vanilla, VanillaEager
from tests.models.test_families import close

TARGET = torch.tensor([[5, 6, 7], [8, 9, -100], [4, -100, -100]])


class LocalLongT5(LongT5Family):
    tiny_config: ClassVar = {**LongT5Family.tiny_config, "encoder_attention_type": "local"}


KINDS = {"local": LocalLongT5, "transient-global": LongT5Family, "led": LEDFamily}


@pytest.fixture(params=KINDS)
def family(request):
    return KINDS[request.param].tiny(Vanilla())


def inputs(family, n, padded):
    """Three rows of n tokens; padded: of n, about half, and about a third, padding on the right."""
    ids = torch.randint(3, 64, (3, n), generator=torch.Generator().manual_seed(n))
    lengths = torch.tensor([[n], [n // 2 + 1], [n // 3 + 1]] if padded else [[n]] * 3)
    valid = torch.arange(n) < lengths
    return ids.masked_fill(~valid, family.model.config.pad_token_id), valid


def theirs_of(family, valid):
    """The arguments about the global token for transformers' own LED."""
    if not isinstance(family, LEDFamily):
        return {}
    first = torch.zeros_like(valid, dtype=torch.long)
    first[:, 0] = 1
    return {"global_attention_mask": first}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("n", [1, 3, 13, 64, 97])
@torch.no_grad()
def test_the_encoder_is_hugging_faces(family, n, padded):
    ids, valid = inputs(family, n, padded)
    theirs = family.model.get_encoder()(
        input_ids=ids, attention_mask=valid.long(), **theirs_of(family, valid)
    ).last_hidden_state
    ours = family.encode(ids, SequenceInfo(valid=valid if padded else None))
    close(ours[valid], theirs[valid])


@torch.no_grad()
def test_logits_loss_and_answers_are_hugging_faces(family):
    ids, valid = inputs(family, 29, padded=True)
    sequence, extra = SequenceInfo(valid=valid), theirs_of(family, valid)
    given = {"input_ids": ids, "attention_mask": valid.long(), **extra}
    theirs = family.model(**given, labels=TARGET)
    close(family.logits(ids, sequence, TARGET), theirs.logits)
    close(family.loss(ids, sequence, TARGET), theirs.loss)
    family.calls = 0
    tokens = family.model.generate(**given, max_new_tokens=6, do_sample=False, num_beams=1)
    assert torch.equal(family.generate_ids(ids, sequence, 6), tokens)
    assert family.calls == 3  # one of each encoder layer


@torch.no_grad()
def test_the_native_kernel_leaves_the_models_attention_alone(family):
    ids, _ = inputs(family, 64, padded=False)
    expected = family.encode(ids, SequenceInfo())
    family.method = Vanilla(kernel="native")
    assert torch.equal(family.encode(ids, SequenceInfo()), expected)


def test_other_methods_are_refused_with_what_the_model_has(family):
    workload = family.workload(64, 1)
    assert refusal(Vanilla(), workload) is None
    for method in (Longformer(), VanillaEager()):
        reason = refusal(method, workload)
        assert workload.model_attention in reason and "vanilla" in reason
