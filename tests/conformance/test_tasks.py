"""Every task of the configuration, a plugin's too, keeps the contract of tasks/base.py."""

from __future__ import annotations

import pytest

from bench.request import plugins
from tasks.check import check

NAMES = sorted(plugins.available("task"))


def whole_words(start: str | None, end: str | None):
    """A tokenizer of whole words and marks that adds `start` and `end`, as T5 and Llama do."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    from tasks.generators import stories

    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()]
    )
    special = ["<pad>", "</s>", "<unk>", "<s>"]
    text = [stories.story("train", 0, 2048).text, "a b c d e f 0 1 2 3 4 5 6 7 8 9 , . < > % ( )"]
    tokenizer.train_from_iterator(
        text, trainers.WordLevelTrainer(special_tokens=special, show_progress=False)
    )
    around = f"{start + ' ' if start else ''}$A{' ' + end if end else ''}"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=around, special_tokens=[(one, special.index(one)) for one in (start, end) if one]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.fixture(scope="module")
def tokenizers():
    return {"t5": whole_words(None, "</s>"), "llama": whole_words("<s>", None)}


def cases():
    """Each task with the tokenizer of T5, and one of each kind of YAML with that of Llama."""
    kinds = set()
    for name in NAMES:
        conf = plugins.conf("task", name)
        yield name, "t5"
        kind = (conf["target"], *conf)
        # A task with ids of its own uses no tokenizer.
        if kind not in kinds and not conf.get("vocabulary"):
            kinds.add(kind)
            yield name, "llama"


@pytest.mark.parametrize(("name", "kind"), [*cases()])
def test_task_keeps_the_contract(name, kind, tokenizers):
    task = plugins.build(plugins.conf("task", name))
    report = check(task, tokenizers[kind])
    assert not report.failures
    assert not report.not_checked or not task.has_embedded


@pytest.mark.parametrize("name", NAMES)
def test_yaml_is_short_and_says_what_it_is(name):
    path = plugins.available("task")[name]
    assert len(path.read_text().partition("facts:")[0].splitlines()) <= 25
    assert plugins.about(path) and plugins.conf("task", name)["name"] == name
