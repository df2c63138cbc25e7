"""The YAML of a new task in one of the shapes that are there: bench new task NAME."""

from __future__ import annotations

SHAPES = {
    "summaries": """\
target: tasks.summaries:Summaries
benchmark: {name}
version: 1
metric: rouge_stemmed
columns: {{document: document, summary: summary, id: id}}
embedded: article
max_new_tokens: 256
length: 4096
files: {{validation: ["validation*.jsonl*", "validation*.parquet"]}}
""",
    "questions": """\
target: tasks.scrolls:Scrolls
benchmark: {name}
version: 1
# {name}/{name}.zip holds {name}/<split>.jsonl of {{id, input, output}}; an input is the question,
# a blank line and the document; rows with one id are several references.
member: {name}
metric: f1
query: paragraph
embedded: question
max_new_tokens: 64
length: 16384
""",
    "answers": """\
target: tasks.eli5:Eli5
benchmark: {name}
version: 1
# Rows are {{id, input, output: [{{answer}}, …]}}, with a document where there is one.
metric: rougel_f1
layout: kilt
max_new_tokens: 256
length: 4096
files: {{validation: ["validation*.jsonl*", "validation*.parquet"]}}
""",
}
SHAPE = "summaries"


def task_yaml(name: str, shape: str = SHAPE) -> str:
    """The text of conf/task/<name>.yaml for a task of an existing shape, at most 25 lines.
    ValueError for an unknown shape or a name that can't be one on the command line."""
    if shape not in SHAPES:
        raise ValueError(f"no shape '{shape}'; accepted: {', '.join(SHAPES)}")
    if not name.isidentifier() or name != name.lower():
        raise ValueError(f"name is {name!r}; accepted: small letters, digits and _")
    return (
        f"# {name}: what is asked, and how it is scored.\n"
        f"# Licence and official numbers of rows.\n"
        f"name: {name}\n"
        f"{SHAPES[shape].format(name=name)}"
        '# hub: {repo: owner/name, revision: <commit>, files: {validation: "…"}}\n'
        "licence: unverified\n"
    )
