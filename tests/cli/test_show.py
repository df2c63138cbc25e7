"""bench show: a prompt's two ends, what was cut, references."""

from __future__ import annotations

import pytest

from bench.cli.main import dispatch


@pytest.fixture
def said(capsys):
    def run(*words):
        code = dispatch(["show", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_a_decoder_s_prompt_and_what_was_cut(said):
    words = ("task=quality", "model=embedded-llama", "length=800", "row=1")
    code, out, err = said(*words)
    assert (code, err) == (0, "") and out.startswith("<s>You are provided a story")
    assert " characters …]\n" in out and "[The rest of the text is omitted]\n\nQuestion and " in out
    facts = dict(line.split(maxsplit=1) for line in out.rpartition("\n\n")[2].splitlines())
    assert facts["row"] == "embedded-validation-0-001" and facts["prompt"] == "plain"
    assert facts["tokens"] == "710 of 800; an answer has 90 or fewer"
    assert facts["cut"].endswith(" on") and " characters (" in facts["cut"]
    assert facts["references"].startswith('["the ') and facts["stop"] == "strings  none"
    code, full, _ = said(*words, "--full")
    assert code == 0 and "characters …]" not in full and out[:300] == full[:300]
    assert full.endswith(out[-300:]) and len(full) > len(out)


def test_an_encoder_s_input(said):
    code, out, _ = said("task=gov_report", "length=1024")
    assert code == 0 and out.startswith("summarize This is a story") and "</s>\n\nrow" in out
    assert "prompt        query first, for an encoder" in out


@pytest.mark.parametrize(("words", "told"), [
    (["task=lra_listops"], "task lra_listops reads token ids, so it has no text to show"),
    (["task=quality", "model=embedded-llama", "prompt=chat"], "has no chat template"),
    (["task=gov_report", "model=embedded-llama", "length=300"], "length=300 is too short for gov"),
    (["row=x"], "'x' is not a valid integer"),
    (["quality"], "can't read 'quality'"),
])  # fmt: skip
def test_what_cannot_be_shown_is_one_line(said, words, told):
    code, out, err = said(*words)
    assert code == 2 and not out and told in err and len(err.splitlines()) == 1
