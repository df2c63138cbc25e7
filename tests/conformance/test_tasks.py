"""Every task of the configuration, a plugin's too, keeps the contract of tasks/base.py."""

import pytest

from bench.request import plugins
from tasks.check import check
from tests.conftest import word_tokenizer

NAMES = sorted(plugins.available("task"))


@pytest.fixture(scope="module")
def tokenizers():
    """Tokenizers that add tokens as those of T5 and Llama do."""
    from tasks.generators import stories

    text = [stories.story("train", 0, 2048).text, "a b c d e f 0 1 2 3 4 5 6 7 8 9 , . < > % ( )"]
    special, added = "<pad> </s> <unk> <s>", {"t5": "$A </s>", "llama": "<s> $A"}
    return {name: word_tokenizer(text, special, single) for name, single in added.items()}


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
