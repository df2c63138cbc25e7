"""Prompts of decoders: the official texts, one beginning-of-sequence token, room for new tokens,
and chat templates."""

import functools
import json
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from bench.request import plugins
from tasks.base import CHAT, PLAIN, Data, DataError, NoEmbeddedRows, Row, Task
from tasks.generators import stories
from tasks.loading import prompts
from tasks.loading.prompts import Prompt
from tasks.loading.reader import Reader
from tasks.perplexity import Perplexity
from tests.conftest import ROOT

BOS, TURN, END = "<s>", "<|im_start|>", "<|im_end|>"
SYSTEM = f"{TURN}system\nYou are a model.{END}\n"
USER, ASSISTANT = f"{TURN}user\n", f"{END}\n{TURN}assistant\n"
TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first %}{{ '" + SYSTEM.replace("\n", "\\n") + "' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""SmolLM2's, with a default system message."""


def tokenizer(bos: bool = False, template: str | None = None) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = [BOS, "</s>", TURN, END]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator([stories.story("train", i, 1024).text for i in range(4)], trainer)
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, 0)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=BOS, eos_token="</s>", chat_template=template
    )


TOKENIZERS = {
    "bos": (tokenizer(bos=True), PLAIN),
    "no-bos": (tokenizer(), PLAIN),
    "chat": (tokenizer(template=TEMPLATE), CHAT),
    "chat of a tokenizer with bos": (tokenizer(True, "{{ bos_token }}" + TEMPLATE), CHAT),
}


@functools.cache
def task_of(name: str, decoder: str | None = PLAIN) -> Task:
    return replace(plugins.build(plugins.conf("task", name)), decoder=decoder)


def made(name: str) -> Task | None:
    """A task that a decoder answers, before a cell sets `decoder`."""
    task = plugins.build(plugins.conf("task", name))
    answered = task.answers == "text" and task.vocabulary is None
    return task if answered and not isinstance(task, Perplexity) else None


TASKS = [name for name in plugins.available("task") if made(name) is not None]
ASKED = Prompt(
    "a", "Where is it?", "A long story. " * 400, ("in the attic",), ending="\nAnswer:",
    separator=" [cut] ",
)  # fmt: skip


@functools.cache
def loaded(name: str, decoder: str | None) -> Row:
    task = task_of(name, decoder)
    try:
        # This tokenizer's shortest list of words is longer.
        return task.load(Data(), 1, 8192 if task.name == "ruler_cwe" else 4096, 0).rows[0]
    except NoEmbeddedRows:
        return ASKED


def row_of(task: Task) -> Row:
    return loaded(task.name, task.decoder)


# --- what is around a text ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", TASKS)
def test_a_prompt_has_its_frame_once_and_leaves_room_for_new_tokens(name, kind):
    tokens, form = TOKENIZERS[kind]
    task = task_of(name, form)
    row = row_of(task)
    whole = task.encode(row, tokens, 1_000_000)
    new, shorter = task.max_new_tokens, len(whole.ids) * 2 // 3
    cases = [(whole, len(whole.ids) + new)]
    try:
        cases.append((task.encode(row, tokens, shorter + new), shorter + new))
        assert len(cases[-1][0].ids) < len(whole.ids)
    except DataError as error:
        assert "too short" in str(error)
    for encoded, length in cases:
        ids, text = list(encoded.ids), tokens.decode(encoded.ids)
        assert len(ids) + new <= length and len(encoded.vip) == len(ids)
        assert ids.count(tokens.bos_token_id) == ("bos" in kind and kind != "no-bos")
        assert "bos" not in kind or kind == "no-bos" or ids[0] == tokens.bos_token_id
        assert tokens.eos_token_id not in ids
        if form == CHAT:
            assert text.removeprefix(BOS).startswith(SYSTEM + USER)
            assert text.count(TURN) == 3 and text.count(END) == 2
            assert "\n\n" not in text.partition(ASSISTANT)[2]
        if row.query.strip() and whole.removed is None:
            asked = tokens.decode([i for i, vip in zip(ids, encoded.vip, strict=True) if vip])
            assert any(vip for vip in encoded.vip) and (asked in text)


PREFIXED = "ruler_niah_single_2"
IN_CHAT = (
    PREFIXED, "ruler_qa_1", "babilong_qa1", "infinitebench_kv_retrieval", "quality", "qmsum",
    "gov_report", "cnn_dailymail", "longeval_lines", "zeroscrolls_qasper", "hotpotqa", "graphwalks",
)  # fmt: skip


@pytest.mark.parametrize("name", IN_CHAT)
@pytest.mark.parametrize("kind", ["chat", "chat of a tokenizer with bos"])
def test_a_chat_is_what_the_tokenizer_makes_of_a_turn(name, kind):
    tokens, _ = TOKENIZERS[kind]
    task = task_of(name, CHAT)
    encoded = task.encode(row_of(task), tokens, 50_000)
    assert encoded.removed is None and isinstance(task, Reader)
    text = tokens.decode(encoded.ids)
    content = text.partition(USER)[2].partition(ASSISTANT)[0]
    expected = tokens.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, return_dict=False
    )
    prefix = text.partition(ASSISTANT)[2]
    assert prefix.startswith(" The special magic") == (name == PREFIXED)
    assert list(encoded.ids) == expected + tokens(prefix, add_special_tokens=False).input_ids
    # In one piece: no token of the content depends on what is around it.
    plain = tokens(content, add_special_tokens=False).input_ids
    first = len(tokens(text.partition(USER)[0] + USER, add_special_tokens=False).input_ids)
    assert list(encoded.ids)[first : first + len(plain)] == plain


def test_a_template_never_touches_the_content():
    strips = tokenizer(template=TEMPLATE.replace("message['content']", "message['content'] | trim"))
    row = Prompt("a", "What?\n", "\n  Text.\n\n", ())
    text = strips.decode(prompts.encode(row, strips, 100, CHAT).ids)
    assert f"{USER}\n  Text.\n\nWhat?\n{END}" in text


def test_a_template_that_fails_or_omits_the_text_is_an_error():
    for template, reason in (
        ("{{ raise_exception('no system') }}", "the chat template fails: no system"),
        ("{{ messages | length }}", "has the text of a turn 0 times"),
    ):
        with pytest.raises(DataError, match=reason):
            prompts.encode(ASKED, tokenizer(template=template), 100_000, CHAT)


def test_a_later_question_is_a_further_turn():
    tokens, _ = TOKENIZERS["chat"]
    row = Prompt("a", "And where?", "", (), ending=" It is", begins_answer=True)
    asked = tokens.decode(prompts.question(row, tokens, CHAT))
    assert asked == f"{END}\n{USER}And where?{ASSISTANT} It is"
    assert tokens.decode(prompts.question(row, tokens, PLAIN)) == "And where? It is"


def test_the_messages_of_a_conversation_are_turns():
    tokens, form = TOKENIZERS["chat"]
    task = task_of("mrcr", form)
    asked = ("Write a poem.", "Roses are red. " * 40, "Repeat the first, after x1.")
    turns = [
        {"role": role, "content": text}
        for role, text in zip(("user", "assistant", "user"), asked, strict=True)
    ]
    record = {"prompt": json.dumps(turns), "answer": "x1Roses", "random_string_to_prepend": "x1"}
    row = task.parse(record, "", "test", 0)
    expected = tokens.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    whole = task.encode(row, tokens, 4096)
    assert list(whole.ids) == expected
    vip = [i for i, is_vip in zip(whole.ids, whole.vip, strict=True) if is_vip]
    assert tokens.decode(vip) == asked[2]
    shorter = task.encode(row, tokens, task.max_new_tokens + 100)
    text = tokens.decode(shorter.ids)
    assert len(shorter.ids) <= 100 and shorter.removed is None
    assert text.startswith(SYSTEM + USER + asked[0]) and text.endswith(asked[2] + ASSISTANT)


# --- official texts -----------------------------------------------------------------------------

NIAH = (
    "A special magic number is hidden within the following text. Make sure to memorize it. I will "
    "quiz you about the number afterwards.\n"
)
ONLY = (
    "Answer the question based on the given passages. Only give me the answer and do not output "
    "any other words."
)
QUALITY = (
    "You are provided a story and a multiple-choice question with 4 possible answers (marked by A, "
    "B, C, D). Choose the best answer by writing its corresponding letter (either A, B, C, or D)."
)
QASPER = (
    "You are given a scientific article and a question. Answer the question as concisely as you "
    "can, using a single phrase or sentence if possible. If the question cannot be answered based "
    'on the information in the article, write "unanswerable". If the question is a yes/no '
    'question, answer "yes", "no", or "unanswerable".'
)
NARRATIVE = (
    "You are given a story, which can be either a novel or a movie script, and a question. Answer "
    "the question as concisely as you can, using a single phrase if possible."
)
MEETING = (
    "You are given a meeting transcript and a query containing a question or instruction. Answer "
    "the query in one or more sentences."
)
EPISODE = "You are given a script of a TV episode. Summarize the episode in a paragraph."
REPORT = "You are given a report by a government agency. Write a one-page summary of the report."
NEWS = "You are given several news passages. Write a one-page summary of all news. "
OFFICIAL = {
    "quality": QUALITY + "\n\nStory:\n{d}\n\nQuestion and Possible Answers:\n{q}\n\nAnswer:\n",
    "qasper": QASPER + "\n\nArticle:\n{d}\n\nQuestion:\n{q}\n\nAnswer:\n",
    "narrativeqa": NARRATIVE + "\n\nStory:\n{d}\n\nQuestion:\n{q}\n\nAnswer:\n",
    "qmsum": MEETING + "\n\nTranscript:\n{d}\n\nQuery:\n{q}\n\nAnswer:\n",
    "summ_screen_fd": EPISODE + "\n\nEpisode Script:\n{d}\n\nSummary:\n",
    "gov_report": REPORT + "\n\nReport:\n{d}\n\nSummary:\n",
    "zeroscrolls_qasper": "{d}{q}\n\nAnswer:\n",
    "multi_news": NEWS + "\n\nNews:\n{d}\n\nNow, write a one-page summary of all the news."
    "\n\nSummary:",
    "hotpotqa": ONLY + "\n\nThe following are given passages.\n{d}\n\n" + ONLY
    + "\n\nQuestion: {q}\nAnswer:",
    "longeval_lines": "{d}{q}",
}  # fmt: skip
"""ZeroSCROLLS' prompts (tau/zero_scrolls), LongBench's (config/dataset2prompt.json), LongEval's."""


@pytest.mark.parametrize("name", OFFICIAL)
def test_ids_are_those_of_the_official_prompt(name):
    task = task_of(name)
    row = row_of(task)
    text = OFFICIAL[name].replace("{q}", row.query).replace("{d}", row.document)
    for kind in ("bos", "no-bos"):
        tokens, _ = TOKENIZERS[kind]
        assert list(task.encode(row, tokens, 1_000_000).ids) == tokens(text).input_ids


def test_ids_of_a_needle_are_those_of_the_official_prompt():
    tokens, _ = TOKENIZERS["bos"]
    task = task_of(PREFIXED)
    text = tokens.decode(task.encode(row_of(task), tokens, 700).ids).removeprefix(BOS)
    context, _, question = text.removeprefix(NIAH).rpartition("\nWhat is the special magic number")
    key = question.partition(" for ")[2].partition(" ")[0]
    asked = f"the special magic number for {key} mentioned in the provided text"
    official = f"{NIAH}{context}\nWhat is {asked}? The special magic number for {key} mentioned in "
    assert text == f"{official}the provided text is"


def test_a_truncated_prompt_is_zero_scrolls_own_without_a_second_start():
    tokens, _ = TOKENIZERS["bos"]
    task = task_of("zeroscrolls_qasper")
    row = row_of(task)
    room = 600
    tail = tokens(f"{row.separator}{row.query}\n\nAnswer:\n", add_special_tokens=False).input_ids
    head = tokens(row.document).input_ids[: room - len(tail)]
    encoded = task.encode(row, tokens, room + task.max_new_tokens)
    assert list(encoded.ids) == head + tail
    kept = row.document[: encoded.removed[0]]
    assert tokens(kept).input_ids == head and encoded.removed[1] == len(row.document)


def test_a_truncated_prompt_is_long_bench_s_own():
    """pred.py, with and without a chat template."""
    for kind, (tokens, form) in TOKENIZERS.items():
        if kind == "chat of a tokenizer with bos":
            continue
        text = ASKED.text
        around = SYSTEM + USER, ASSISTANT
        fixed = [len(tokens(one, add_special_tokens=False).input_ids) for one in around]
        room = 400
        ids, half = tokens(text).input_ids, room // 2
        kept = tokens.decode(ids[:half], skip_special_tokens=True)
        kept += tokens.decode(ids[-half:], skip_special_tokens=True)
        expected = tokens(kept).input_ids
        if form == CHAT:
            expected = tokens.apply_chat_template(
                [{"role": "user", "content": kept}], add_generation_prompt=True, return_dict=False
            )
        length = room + (sum(fixed) if form == CHAT else 0)
        assert list(prompts.encode_middle(ASKED, tokens, length, form).ids) == expected


def test_zero_scrolls_variant_for_chat_models_is_used_in_a_chat():
    tokens, _ = TOKENIZERS["chat"]
    task = task_of("zeroscrolls_qasper", CHAT)
    text = tokens.decode(task.encode(row_of(task), tokens, 8192).ids)
    assert f'"unanswerable". {prompts.CHAT_REQUEST}\n\nArticle:\n' in text
    assert text.endswith(f"{row_of(task).query}{ASSISTANT}")
    summary = task_of("zeroscrolls_gov_report", CHAT)
    text = tokens.decode(summary.encode(row_of(summary), tokens, 8192).ids)
    assert prompts.CHAT_REQUEST not in text and "Summary:" not in text


def test_removed_characters_are_those_of_the_row_itself():
    for kind, (tokens, form) in TOKENIZERS.items():
        for name in ("quality", "zeroscrolls_quality"):
            task = task_of(name, form)
            row = row_of(task)
            encoded = task.encode(row, tokens, 900)
            start, stop = encoded.removed
            last = " ".join(row.document[:start].split()[-6:-1])
            assert last in " ".join(tokens.decode(encoded.ids).split()), kind
            assert start < len(row.document) <= stop


def test_the_letter_of_an_option_is_its_text():
    task = task_of("quality")
    row = row_of(task)
    options = [line.partition(") ")[2] for line in row.query.splitlines() if ") " in line]
    assert task.spell(row, "(B) or so") == options[1] and task.spell(row, "D") == options[3]
    assert task.spell(row, options[0]) == options[0] and task.spell(row, "none") == "none"
    assert task_of("quality", None).spell(row, "D") == "D"


def test_an_answer_ends_before_a_stop_string():
    task = task_of("longbench_samsum")
    assert list(task.stop) == ["\n"] and not list(task_of("zeroscrolls_qmsum").stop)
    assert task.ended("They meet.\nAnd more") == "They meet."
    # pred.py: min_length
    assert task.ended("\n\nThey meet.\nAnd more") == "\n\nThey meet."
    either = replace(task_of("quality"), stop=("END", "", "\n\n"))
    assert either.ended("a\nb\n\ncEND") == "a\nb" and either.ended("aEND\n\n") == "a"


# --- which form ---------------------------------------------------------------------------------


def test_no_chat_template_where_the_benchmark_has_none():
    for name, chats in (
        ("longbench_samsum", False), ("longbench_repobench_p", False), ("longbench_trec", False),
        ("longbench_qasper", True), ("quality", True), ("lra_text", False),
    ):  # fmt: skip
        assert task_of(name).chats is chats
    assert not replace(task_of("longeval_lines"), template="vicuna").chats


def test_a_task_with_an_encode_of_its_own_takes_no_chat_template():
    class Own(Reader):
        def encode(self, row, tokenizer, length):
            return prompts.encode_query_first(row, tokenizer, length)

    class Extended(Own):
        pass

    class Informed(Own):
        can_chat = True

    assert not Own.can_chat and not Extended.can_chat and Informed.can_chat and Reader.can_chat
    assert not Task.can_chat


def test_encoder_decoders_get_the_ids_that_they_had():
    tokens = AutoTokenizer.from_pretrained(ROOT / "bench" / "models" / "embedded" / "t5")

    def ids(text: str, special: bool = True) -> list[int]:
        return tokens(text, add_special_tokens=special).input_ids

    for name in ("quality", "gov_report", "cnn_dailymail", "eli5", "hotpotqa"):
        task = task_of(name, None)
        row = row_of(task)
        query, room = ids(row.query, False), 700
        expected = query + ids(row.document, False)[: room - len(query) - 1] + [1]
        assert list(task.encode(row, tokens, room).ids) == expected
    task = task_of("zeroscrolls_quality", None)
    row = row_of(task)
    tail = ids(row.separator + row.query + row.ending)
    assert list(task.encode(row, tokens, 700).ids) == ids(row.document)[: 700 - len(tail)] + tail
    assert list(prompts.encode(row, tokens, 9000).ids) == ids(row.text)
    kept = "".join(tokens.decode(part, skip_special_tokens=True)
                   for part in (ids(ASKED.text)[:200], ids(ASKED.text)[-200:]))  # fmt: skip
    assert list(prompts.encode_middle(ASKED, tokens, 400).ids) == ids(kept)[:400]
