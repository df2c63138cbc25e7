"""A document as one HTML file: no script, no network, light and dark, print."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable

from reports.elements import Code, Element, Grid, Heading, Items, plain

STYLE = """
:root{color-scheme:light dark;
--line:#c9d1d9;--soft:#59636e;--back:#f6f8fa;--good:#116329;--bad:#a40e26}
@media(prefers-color-scheme:dark){:root{
--line:#3d444d;--soft:#9aa5b1;--back:#161b22;--good:#56d364;--bad:#ff938a}}
body{font:16px/1.5 system-ui,sans-serif;max-width:76rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem;line-height:1.25}h2{font-size:1.15rem;margin:2rem 0 .5rem}
.wide{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:.25rem 0}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
td:first-child{white-space:nowrap}tr[class]:not([class=faint]) td:last-child{min-width:16rem}
th{background:var(--back)}.n{text-align:right;white-space:nowrap}
.reproduced td:last-child{color:var(--good);font-weight:600}
.differs td:last-child{color:var(--bad);font-weight:600}
.not-run td:last-child,.cannot td:last-child{color:var(--soft)}
.faint td{color:var(--soft)}
code{font:.85em ui-monospace,monospace;background:var(--back);padding:.1em .3em;
overflow-wrap:anywhere}
li{margin:.25rem 0}
@media print{body{max-width:none;padding:0}.wide{overflow:visible}table{font-size:8pt}
tr{break-inside:avoid}}
""".strip()
POLICY = "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"


def write(elements: Iterable[Element], title: str) -> str:
    """A whole page. Everything that isn't ours is escaped, and the policy lets no script run."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    body = "\n".join(part for element in elements for part in _element(element))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY.format(digest))}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def index(entries: Iterable[tuple[str, str, str]]) -> str:
    """The page of links: file, title and what is told of it."""
    links = "\n".join(
        f'<li><a href="{escape(file)}">{escape(title)}</a><br>{escape(told)}</li>'
        for file, title, told in entries
    )
    heading = Heading("Published and measured", 1)
    page = write([heading], heading.text)
    return page.replace("\n</main>", f"\n<ul>\n{links}\n</ul>\n</main>")


def escape(text: str) -> str:
    return html.escape(plain(text))


def _element(element: Element) -> list[str]:
    if isinstance(element, Heading):
        return [f"<h{element.level}>{escape(element.text)}</h{element.level}>"]
    if isinstance(element, Grid):
        return [*_grid(element)]
    if isinstance(element, Items):
        return ["<ul>", *(f"<li>{_item(item)}</li>" for item in element.items), "</ul>"]
    return [f"<p>{escape(element.text)}</p>"]


def _item(item: str | tuple[str, str]) -> str:
    if isinstance(item, str):
        return escape(item)
    text = escape(item[1])
    return f"{escape(item[0])}: " + (f"<code>{text}</code>" if isinstance(item[1], Code) else text)


def _grid(grid: Grid) -> list[str]:
    head = "".join(
        f'<th scope="col"{_kind(at, grid)}>{escape(text)}</th>' for at, text in enumerate(grid.head)
    )
    lines = []
    for at, line in enumerate(grid.lines):
        kinds = [grid.verdicts[at].replace(" ", "-")] if grid.verdicts else []
        kinds += ["faint"] if at in grid.faint else []
        kind = f' class="{" ".join(kinds)}"' if kinds else ""
        cells = "".join(f"<td{_kind(i, grid)}>{escape(text)}</td>" for i, text in enumerate(line))
        lines.append(f"<tr{kind}>{cells}</tr>")
    return [
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(grid.caption)}"><table>',
        f"<caption>{escape(grid.caption)}</caption>",
        f"<thead><tr>{head}</tr></thead>",
        "<tbody>",
        *lines,
        "</tbody></table></div>",
    ]


def _kind(at: int, grid: Grid) -> str:
    return ' class="n"' if at in grid.numbers else ""
