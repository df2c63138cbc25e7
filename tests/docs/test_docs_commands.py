"""Each command in a code block of README.md and docs: its names are known and its request composes.
Those of docs/tour.md are run: tests/cli/test_tour.py."""

import re
import shlex

import click
import pytest

from bench.cli.main import TARGETS, bench
from bench.request import plugins
from bench.request.compose import compose
from bench.request.overrides import check_overrides
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TOUR = ROOT / "docs" / "tour.md"
RUN = ("run", "plan", "train", "show")
"""Commands whose words are a request."""
THEIRS = re.compile(r"=(?:CHECKPOINT|MODEL|/path\S*|ORG/NAME|plain_t5|t5-base|lm_eval:\S+|cases)\b")
"""Values that are the reader's: a model or a task that isn't here, or is in another package."""
MAKEFILE = (ROOT / "Makefile").read_text()
MAKE_NAMES = {
    target: set(names.split())
    for target, names in re.findall(r"^NAMES_([\w-]+) := (.*)$", MAKEFILE, re.M)
} | {"setup": set()}


def blocks(text):
    """The code blocks of a page: fenced ones of a shell, and indented ones."""
    yield from re.findall(r"^```(?:bash|sh)?\n(.*?)^```$", text, re.M | re.S)
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    yield from re.findall(r"(?:^    .*\n)+", plain, re.M)


def commands(text):
    """The words of each command of bench and make."""
    for block in blocks(text):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            for part in re.split(r" && | \|\| |; (?=bench |make |do |done)", line):
                part = re.sub(r"^\s*(?:\w+=\S* |do )*", "", part)
                if re.match(r"(?:bench|make) ", part):
                    # Some blocks have their remarks in a second column without a #.
                    yield shlex.split(re.split(r"\s{2,}(?!#)(?=[A-Za-z])", part)[0], comments=True)


FOUND = {
    " ".join(words): words
    for path in PAGES
    if path != TOUR
    for words in commands(path.read_text())
}  # fmt: skip


def test_there_are_commands_on_most_pages():
    with_commands = {path.name for path in PAGES if list(commands(path.read_text()))}
    assert len(with_commands) >= 12 and len(FOUND) > 80


@pytest.mark.parametrize("text", FOUND)
def test_a_command_is_understood(text):
    program, *words = FOUND[text]
    if program == "make":
        return check_make(words)
    name = " ".join(words[:2]) if " ".join(words[:2]) in TARGETS else words[0]
    assert name in TARGETS, text
    given = [word for word in words[len(name.split()) :] if not re.match(r"[<>\[…]|\d?>", word)]
    command = bench.get_command(None, name)
    if name in RUN:
        request = [word for word in given if "=" in word and not word.startswith(("-", "row="))]
        return check_request(request, "-m" in given)
    optional = re.search(r"\[--", text) or name == "lm_eval"
    if not optional and ">" not in text and "--help" not in given:
        context = click.Context(command, info_name=name)
        command.make_parser(context).parse_args([*given])


def check_make(words):
    targets = [word for word in words if "=" not in word]
    names = {word.partition("=")[0] for word in words if "=" in word}
    assert targets and all(re.search(rf"^{target}:", MAKEFILE, re.M) for target in targets)
    known = set().union(*(MAKE_NAMES.get(target, set()) for target in targets))
    assert names <= known | {"PYTHON"}, names - known


def check_request(words, multirun):
    """Its first and its last combination compose; only names are checked if it contains a value
    that is the reader's."""
    for place in (0, -1):
        one = [f"{name}={value.split(',')[place]}" for name, _, value in
               (word.partition("=") for word in words)]  # fmt: skip
        methods = [word.partition("=")[2] for word in one if word.startswith("method=")]
        if multirun and methods and "budget" not in plugins.conf("method", methods[0]):
            one = [word for word in one if not word.startswith("budget=")]
        experiment = next((w.partition("=")[2] for w in one if w.startswith("experiment=")), None)
        if any(THEIRS.search(word) or "$" in word for word in words):
            check_overrides([word for word in one if not THEIRS.search(word)])
        elif experiment:
            assert experiment in plugins.available("experiment")
        else:
            compose(one)
            if not any("," in word for word in words):
                break


def test_a_link_between_pages_leads_to_one():
    for path in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
