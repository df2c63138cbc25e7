"""The site of the documentation: its pages, its lists. `make docs` builds it, strictly."""

import re

from tests.conftest import ROOT
from tools.docs.lists import rewritten

SITE = (ROOT / "mkdocs.yml").read_text()
GENERATED = {"support.md"}


def test_each_page_is_in_the_navigation_once():
    named = re.findall(r"^      - ([\w-]+\.md)$", SITE, re.M)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - GENERATED
    assert sorted(named) == sorted(pages)


def test_it_is_strict_and_names_no_other_host():
    assert "strict: true" in SITE and "font: false" in SITE and "://" not in SITE


def test_a_list_is_nested_by_four_columns_and_has_a_line_before_it():
    text = "Text:\n- one\n  - two\n  more\n\n    - code\n\n```\n- code\n  - code\n```\n1. three\n"
    assert rewritten(text).splitlines() == [
        "Text:", "", "- one", "    - two", "  more", "", "    - code", "", "```", "- code",
        "  - code", "```", "", "1. three",
    ]  # fmt: skip
