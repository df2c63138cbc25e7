"""`bench cite`: the papers behind methods and tasks, from `citations.bib` and the `facts` of YAML
files."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench.errors import RequestError, unknown
from bench.request import plugins
from bench.rows import query
from bench.terminal.options import command, results_option

FILE = "citations.bib"
ITSELF = "longctxbench"
"""Key of this project's own entry, which is cited with every row."""
ENTRY = re.compile(r"^@\w+\{(?P<key>[^,\s]+),.*?^\}$", re.DOTALL | re.MULTILINE)
FIELD = re.compile(r"^  (\w+) = \{(.*)\},?$", re.MULTILINE)
GROUPS = ("method", "task")


class Citation(NamedTuple):
    """`text` is the entry as BibTeX, `fields` its fields by name."""

    key: str
    text: str
    fields: Mapping[str, str]

    @property
    def line(self) -> str:
        """Author, year, title and place, in one line."""
        author = self.fields["author"].replace(" and others", " et al.").strip("{}")
        place = self.fields.get("booktitle") or self.fields.get("journal")
        arxiv = self.fields.get("eprint")
        url = f"arXiv {arxiv}" if arxiv else self.fields.get("url")
        year, title = self.fields.get("year", "n. d."), self.fields["title"].strip("{}")
        return ". ".join(part for part in (f"{author} ({year})", title, place, url) if part)


@functools.cache
def citations() -> dict[str, Citation]:
    """Key → entry of the project's file and of those of plugins."""
    found: dict[str, Citation] = {}
    for path in (folder / FILE for folder in plugins.conf_dirs()):
        for entry in ENTRY.finditer(path.read_text(encoding="utf-8") if path.is_file() else ""):
            fields = dict(FIELD.findall(entry[0]))
            found.setdefault(entry["key"], Citation(entry["key"], entry[0], fields))
    return found


def cited(group: str, name: str) -> list[Citation]:
    """Citations for a method or a task: the keys of its `facts.cite`, and a method's `facts.paper`.
    Raises RequestError for an unknown name, and for a key without an entry."""
    facts: Mapping[str, Any] = plugins.conf(group, name).get("facts") or {}
    known = citations()
    keys = list(facts.get("cite") or ())
    if arxiv := facts.get("paper"):
        papers = [key for key, one in known.items() if one.fields.get("eprint") == arxiv]
        keys = [*(papers[:1] or [f"arXiv {arxiv}"]), *keys]
    if missing := [key for key in keys if key not in known]:
        raise RequestError(f"{group}={name} cites '{missing[0]}', which no {FILE} has")
    return [known[key] for key in keys]


@command(
    "What to cite for methods and tasks, or for a row: papers of the method and of the benchmark, "
    "and this project. A row is its id (its first letters), or FOLDER/ID.",
    "bench cite method=vcc task=qmsum\nbench cite 3f2a91 --bibtex >> paper.bib",
)
@click.argument("words", nargs=-1, required=True, metavar="NAME=VALUE|ROW...")
@click.option("--bibtex", is_flag=True, help="Entries for a .bib file.")
@results_option()
def cite(words: Sequence[str], bibtex: bool, results: Path) -> int:
    pairs = dict.fromkeys(pair for word in words for pair in _pairs(word, results))
    found = {(group, name): cited(group, name) for group, name in pairs}
    itself = {("this project", ""): [citations()[ITSELF]]}
    if bibtex:
        entries = {one.key: one.text for each in (found | itself).values() for one in each}
        print("\n\n".join(entries.values()))
        return 0
    for (group, name), entries_of in (found | itself).items():
        print(f"{group}={name}" if name else group)
        for line in [one.line for one in entries_of] or ["no paper is named"]:
            print(f"  {line}")
        if group == "task":
            for line in _source(name):
                print(f"  {line}")
    return 0


def _pairs(word: str, results: Path) -> Iterable[tuple[str, str]]:
    """The groups and names to which a word refers. Raises RequestError."""
    group, equals, names = word.partition("=")
    if not equals:
        [row] = query.sides([word], results)
        if not row.one:
            raise RequestError(f"'{word}' is no row's id; bench cite takes method=, task= or a row")
        return [(each, str(row.rows[-1][each])) for each in GROUPS]  # type: ignore[literal-required]
    if group not in GROUPS:
        raise unknown("name", group, GROUPS)
    return [(group, name) for name in names.split(",")]


def _source(task: str) -> Iterable[str]:
    """Licence, homepage and revision of a task's data."""
    conf = plugins.conf("task", task)
    facts, hub = conf.get("facts") or {}, conf.get("hub") or {}
    revision = f"{hub['repo']} at {hub['revision']}" if hub else None
    known = {
        "licence": conf.get("licence"),
        "homepage": facts.get("homepage"),
        "data": revision,
        "not verified yet": facts.get("unverified"),
    }
    return [f"{name}: {text}" for name, text in known.items() if text]
