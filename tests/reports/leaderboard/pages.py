"""Shared parts of the tests of the page: rows, pages of them, and the contents of a page."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

from bench.cli.main import dispatch
from bench.rows.store import Store
from reports.leaderboard import boards as boarding
from reports.leaderboard.pick import pick
from tests.reports import made

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&${style}{method}</script>"
ONE = {"kinds": (("hub", "finetuned"),)}
"""Rows of one kind of data and weights: one board for each task and length."""


def stored(folder: Path, rows) -> Path:
    Store(folder).append(rows)
    return folder


def boards(folder, *words, most=2000):
    picked = pick([folder], words, most)
    return boarding.boards(picked.rows, lambda done, total: None)


def small(**more):
    """Rows of one task, on few boards."""
    return made.rows(**{"tasks": ("narrativeqa",), "lengths": (4096,), "devices": ("cpu",)} | more)


def written(folder, out, *words, **options):
    assert dispatch(["leaderboard", *words, "--results", str(folder), "--out", str(out)]) == 0
    return out.read_text()


def packed_in(text, name):
    """The gzipped contents of the page: its `data` or its `code`."""
    content = re.search(rf'id="{name}">([^<]*)<', text)[1]
    return json.loads(gzip.decompress(base64.b64decode(content)))


def data_of(text):
    """The data of the page's script."""
    return packed_in(text, "data")


class Tags(HTMLParser):
    """Every element with its attributes, and all text outside scripts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.texts, self.inside = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.texts.append(data)


def hostile_rows():
    for kind in ("plain", "failed"):
        for text in (HOSTILE, HOSTILE * 40):
            row = next(iter(small(methods=("vcc",))))
            names = ("method", "task", "benchmark", "model", "split", "dtype", "device", "host_id",
                     "command", "code_sha", "cpu_model", "measure", "created_utc", "metric",
                     "lat_reason", "noise_reason", "dataset_sha256", "launcher")  # fmt: skip
            row |= dict.fromkeys(names, text) | {"row_id": text + kind}
            row |= {"method_params": json.dumps({text[:99]: text})}
            if kind == "failed":
                row |= {"seed": 1, "status": "error", "status_stage": text, "status_detail": text}
            yield row


def decoded_rows():
    """Rows of a decoder: vanilla, and one method with two budgets of which one loses quality."""
    more = {"model": "embedded-llama", "benchmark": "longeval", "measure": "decoding",
            "new_tokens": 64}  # fmt: skip
    vanilla, cache = small(methods=("vanilla", "vcc"), tasks=("longeval_lines",), **ONE)
    vanilla |= more | {"tpot_median_ns": 2_000_000, "answer_median_ns": 300_000_000,
                       "kv_bytes_held": 64 << 20, "kv_bytes_read_per_token": 8 << 20}  # fmt: skip
    for budget, value, tpot in ((0.5, 88.0, 0.8), (0.25, 40.0, 0.6)):
        yield cache | more | {
            "row_id": f"budget{budget}", "method_params": json.dumps({"budget": budget}),
            "value": value, "value_diff": value - 88, "value_diff_ci_lo": value - 90,
            "value_diff_ci_hi": value - 86, "tpot_median_ns": 1_600_000,
            "tpot_base_median_ns": 2_000_000,
            "tpot_ratio": tpot, "tpot_ratio_ci_lo": tpot - 0.01, "tpot_ratio_ci_hi": tpot + 0.01,
            "tpot_verdict": "faster", "tpot_n_pairs": 20, "answer_median_ns": 270_000_000,
            "answer_base_median_ns": 300_000_000, "answer_ratio": 0.9, "answer_ratio_ci_lo": 0.89,
            "answer_ratio_ci_hi": 0.91, "answer_verdict": "faster", "kv_bytes_held": 32 << 20,
            "kv_held_ratio": budget, "kv_bytes_read_per_token": 4 << 20, "kv_read_ratio": budget,
            "base_kv_bytes_held": 64 << 20, "base_kv_bytes_read_per_token": 8 << 20,
        }  # fmt: skip
    yield vanilla
