"""Generates docs/results.md, the pages of docs/results/ and parts of README.md from the reference
rows: python -m reports.results_page [FOLDER]."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from markupsafe import Markup

from bench.errors import RequestError
from bench.files import write_own
from bench.request import plugins
from bench.rows.columns import COLUMNS
from bench.rows.query import counting, select
from bench.rows.store import Store
from bench.terminal import row_table
from reports import (
    decoder_tables,
    kv_board,
    lra_tables,
    result_tables,
    ruler,
    ruler_scores,
    turn_tables,
)
from reports.grids import chosen, of_one_host
from reports.oracles import is_oracle
from reports.papers.command import claims_text, paper_tables, papers_grid
from reports.processors import PROCESSORS, by_processor
from reports.rendering import markdown, render
from reports.rows import Row
from reports.transfer import TRANSFER, correlations
from reports.wording import AT_CHANCE

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"


DETAILS = ("kv_board", "printed", "transfer", "shipped_decoder", "sparse_prefill", "peers",
           "processors", "encoders", "length", "lra", "training_step")  # fmt: skip


def pages(folder: Path = REFERENCE) -> dict[str, str]:
    """File within docs/ → its Markdown; an experiment without rows is left out."""
    rows = [as_shown(row) for row in counting(Store(folder).rows().to_pylist())]
    of_ruler = of_one_host([*chosen(rows, {"experiment": "ruler"})])
    small = [*chosen(rows, {"recipe": lra_tables.SMALL})]
    published = lra_tables.at_published_length(rows)
    decoders = decoder_tables.next_to_board(rows)
    content = {
        "claims": claims_text([folder]),
        "papers": papers_grid(paper_tables([folder])),
        "board": kv_board.BOARD.tables(rows),
        "board_findings": kv_board.board_findings,
        "choices": decoder_tables.CHOICES.tables(decoder_tables.choices(rows)),
        "decoders": decoder_tables.PRINTED.tables(decoders),
        "transfer": TRANSFER.tables(correlations(rows)),
        "directions": decoder_tables.direction_counts(decoders),
        "tokens": turn_tables.TOKENS.tables(rows),
        "caches_first_tokens": turn_tables.CACHES_FIRST_TOKENS.tables(rows),
        "neighbours": result_tables.neighbours,
        "first_tokens": turn_tables.FIRST_TOKENS.tables(rows),
        "prefill_losses": turn_tables.PREFILL_LOSSES.tables(rows),
        "peers": result_tables.PEERS.tables(rows),
        "processors": PROCESSORS.tables(by_processor(rows)),
        "quickstart": result_tables.QUICKSTART.tables(rows),
        "frontier": result_tables.FRONTIER.tables(rows),
        "kv": result_tables.KV.tables(rows),
        "ruler": [ruler.page(one) for one in ruler_scores.results(of_ruler)],
        "lra_scores": lra_tables.SCORES.tables(lra_tables.seeds(small)),
        "small": small,
        "lra_published": lra_tables.PUBLISHED.tables(published),
        "published": published,
        "lra_steps": lra_tables.STEPS.tables(rows),
        "findings": result_tables.findings,
        "trainings": result_tables.trainings,
        "kv_findings": result_tables.kv_findings,
        "hosts": _hosts,
        "chance_sign": AT_CHANCE,
    }
    found = {PAGE.name: render("results.md.j2", **content)}
    for name in DETAILS:
        found[f"{PAGE.stem}/{name}.md"] = render(f"results_{name}.md.j2", **content)
    return found


def as_shown(row: Row) -> Row:
    """The row with its method's label, and with whether the method is an oracle."""
    own = row["method"], row["method_params"]
    return row | {"method": plugins.method_label(*own), "oracle": is_oracle(*own)}


SHOWCASE = ("method=vcc", "task=narrativeqa", "length=4096", "measure=quick", "model=embedded",
            "device=cpu", "status=ok")  # fmt: skip
"""The row of `make bench` as README.md shows it: the newest of these values."""


def readme(text: str, page: str) -> str:
    """The text of README.md with the choices of the page, and the output of `make bench` for the
    showcase's row. Raises RequestError if there is no such row."""
    choice = page[_block("choice", page)]
    for name, content in (("choice", choice), ("make bench", _showcase())):
        block = _block(name, text)
        text = text[: block.start] + content + text[block.stop :]
    return text


def _block(name: str, text: str) -> slice:
    """The text between two comments."""
    start = f"<!-- {name} -->\n"
    return slice(text.index(start) + len(start), text.index(f"<!-- end of {name} -->"))


def _showcase() -> str:
    rows, _ = select(SHOWCASE, REFERENCE, list(COLUMNS))
    if not rows:
        raise RequestError(f"no row in {REFERENCE} fits {' '.join(SHOWCASE)}")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        row_table.show(rows[-1], REFERENCE)
    *lines, _ = printed.getvalue().strip("\n").splitlines()  # without the row's ids
    shown = "\n".join(line.rstrip() for line in lines)
    return f"```\n{shown}\n```\n"


def _hosts(rows: Iterable[Row], verb: str = "Measured") -> Markup:
    """A sentence for each machine of the rows, with its software."""
    hosts = sorted({result_tables.host(row) for row in rows})
    return Markup("\n".join(f"{verb} on {markdown(host)}." for host in hosts))


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0]) if arguments else PAGE.parent
    made = pages()
    try:
        for name, text in made.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if arguments:
                write_own(path, text.encode())
            else:
                path.write_text(text, encoding="utf-8")
        if not arguments:
            text = readme(README.read_text(encoding="utf-8"), made[PAGE.name])
            README.write_text(text, encoding="utf-8")
    except (RequestError, OSError) as error:
        sys.exit(str(error))
    print(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
