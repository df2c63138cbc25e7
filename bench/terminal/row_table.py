"""One row as a table, shown when a cell is done."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from bench.request import plugins
from bench.request.schema import BASELINE
from bench.rows import row_facts
from bench.rows.columns import FUSED_KERNEL, WIDENED_TO_ALONE
from bench.rows.comparison import Comparison
from bench.rows.row_facts import longest_input
from bench.statistics.paired import ASSUMED_SD_PCT
from bench.status import QualityComparison, QualityVerdict, Status, Verdict
from bench.terminal.output import clean_console, styled
from bench.units import counted, mib, ms, score_digits, span, times, within
from tasks.base import ANSWERS, CHAT

TRAININGS = ("training", "base_training")
SOLO_DIFFERS = 0.1
SHORT = 0.95
"""Share of the length: shorter timed inputs get a note."""
MOST_CUT_FRAC = 0.05
"""Share of the inputs' tokens: if more are cut or unknown to the tokenizer, there is a line."""
STAGES = {
    "load": "quality_load_ns", "prefill": "quality_prefill_ns", "decode": "quality_decode_ns",
    BASELINE: "base_quality_ns", "scoring": "scoring_ns",
}  # fmt: skip
SHOWN_NS = 10 * 10**9
"""Time of the quality stage: more than this is listed by stage."""
SHORT_VERDICT = {
    QualityVerdict.UNTELLABLE: "not comparable", row_facts.SEEDS_UNKNOWN: "undecided"
}  # fmt: skip
MOST_NOTES = 4
"""Lines of notes under a row's table without details."""
WARNED = re.compile(r".*\[yellow\](?!undecided)")
"""A line of the table that becomes a note if the table is shown without it."""


def show(row: Mapping[str, Any], results: Path, details: bool = False) -> None:
    """The table of one row, its verdict and at most MOST_NOTES lines of notes; with `details` each
    figure and each note."""
    console = clean_console(highlight=False, width=None if sys.stdout.isatty() else 100)
    r = dict(row)
    method = str(plugins.method_label(r["method"], r["method_params"]))
    model = row_facts.labelled(r["model"], r)
    title = [f"{method} × {r['task']} × {model}", f"{r['length']:,} tokens"]
    title += [f"{r['device']} {r['dtype']}", counted(r["threads"], "thread")]
    title += row_facts.input_words(r)
    console.print("\n" + escape(" · ".join(title)), style="italic")
    lines = [line for part in PARTS for line in part(r)]
    brief = [line for part in MAIN for line in part(r) if not line[0].startswith(" ")] or lines
    notes = [*_notes(r)]
    first, *trace = (r.get("status_detail") or "no reason given").splitlines()
    n_lines = len(lines) + len(notes) + len(trace)
    if not details:
        others = (line for line in lines if line not in brief)
        warned = [line for line in others if WARNED.match("".join(line[1:]))]
        n_lines -= len(brief) + len(warned)
        every = [f"{name.strip()}: {' '.join(filter(None, text))}" for name, *text in warned]
        every += notes
        heights = accumulate(len(console.render_lines(note, pad=False)) for note in every)
        notes = [note for note, n in zip(every, heights, strict=True) if n <= MOST_NOTES]
        lines, trace, n_lines = brief, [], n_lines + len(warned) - len(notes)
    table = Table(show_edge=False, pad_edge=False)
    alone = r["method"] == BASELINE
    for name in ("", method) if alone else ("", method, BASELINE, f"against {BASELINE}"):
        table.add_column(escape(name), justify="left" if not name else "right")
    for label, mine, base, against in lines:
        beside = " · ".join(text for text in (mine, against) if text not in ("", "–"))
        table.add_row(*((label, beside) if alone else (label, mine, base, against)))
    console.print(table if lines else "nothing was measured")
    if found := [*_verdicts(r)]:
        console.print(f"verdict: {' · '.join(found)}")
    if r["status"] != Status.OK:
        where = f" in stage {r['status_stage']}" if r["status"] != Status.RETIRED else ""
        console.print(f"[red]{r['status']}[/]{escape(where)}: {escape(first)}")
    for note in (*notes, *(f"[dim]  {escape(line)}[/]" for line in trace)):
        console.print(note)
    folder = results.relative_to(here) if results.is_relative_to(here := Path.cwd()) else results
    more = "" if details or not n_lines else f" · --details adds {counted(n_lines, 'line')}"
    ids = f"row {r['row_id'][:12]} · cell {r['cell_key'][:12]}"
    console.print(f"{ids} · in {folder}{more}", markup=False, style="dim")


def _verdicts(r: Mapping[str, Any]) -> Iterator[str]:
    """The verdicts on time, quality and bytes: together one line."""
    latency, token = Comparison.of(r, "lat"), Comparison.of(r, "tpot")
    if latency.verdict:
        name = "first token" if token.verdict else "time"
        yield f"{name} {_short(latency)} {row_facts.engine_only(r)}".rstrip()
    if token.verdict:
        yield f"each token {_short(token)}"
    if found := row_facts.stated_verdict(r):
        weights = row_facts.comparison_text(r)
        named = "" if weights == QualityComparison.SAME_WEIGHTS else f" ({weights})"
        yield f"quality {styled(SHORT_VERDICT.get(found, found))}{named}"
    held = r.get("kv_held_ratio")
    if (ratio := r.get("mem_ratio") if held is None else held) is not None:
        yield f"{'memory' if held is None else 'KV cache'} ×{ratio:.2f}"


def _short(one: Comparison) -> str:
    """The verdict on a ratio, and the ratio if it is decided."""
    decided = "" if one.verdict == Verdict.UNDECIDED else f"×{one.ratio:.2f} "
    return f"{decided}{styled(one.verdict)}"


def _notes(r: Mapping[str, Any]) -> Iterator[str]:
    """Remarks on the row in rich markup, the most important first."""
    if server := json.loads(r["method_params"] or "{}").get("vanilla"):
        yield escape(f"{BASELINE} is the server at {server}")
    if r.get("noisy"):
        yield f"[yellow]noisy host[/]: {escape(r.get('noise_reason') or '')}"
    if (r.get("truncated_frac") or 0) > MOST_CUT_FRAC:
        cut = f"{_about(r)}{r['truncated_frac']:.1%} of the inputs' tokens were cut"
        yield f"[yellow]truncated[/]: {cut} to fit in {r['length']:,}"
    if left_out := r.get("n_unanswerable"):
        yield f"[yellow]left out[/]: {counted(left_out, 'row')} without a right answer"
    if kind := json.loads(r["cell"] or "{}").get("model", {}).get("untrained"):
        yield f"not scored: this checkpoint has no trained head for {ANSWERS[kind]}"
    elif r["weights_kind"] == "random" and r["status"] == Status.OK and r.get("value") is None:
        yield "random weights have no score"
    if row_facts.quality_verdict(r) == QualityVerdict.UNTELLABLE:
        nothing_lost = (
            f"has nearly all points, and {counted(r.get('n_scored'), 'row')} show no loss"
        )
        state = "is at chance" if row_facts.vanilla_at_chance(r) else nothing_lost
        yield f"these rows do not tell methods apart: {BASELINE} {state}"
    if r["status"] == "ok" and r.get("large_memory_kept") is False:
        what = "blocks of 32 MiB and more, which malloc could not keep in this machine's memory"
        yield f"[yellow]page faults[/] are in the times, of {what}"
    if row_facts.comparison(r) == QualityComparison.TRAINED_EACH:
        for name, arm in zip((r["method"], BASELINE), TRAININGS, strict=True):
            yield escape(f"{name}'s training: {row_facts.training_text(r.get(arm))}")
        if r.get("lat_median_ns") is not None:
            yield f"latency, memory and output error: both on {r['method']}'s weights"
    unknown = r.get("unknown_tokens_frac") or 0
    if r["weights_kind"] == "embedded" != r["data_source"] and r.get("tokens_per_word"):
        share = f", {unknown:.1%} of them unknown" if unknown else ""
        known = "the shipped weights know only the words of this project's own rows"
        yield f"{r['tokens_per_word']:.1f} tokens a word{share}: {known}"
    elif unknown > MOST_CUT_FRAC:
        yield f"{unknown:.1%} of the tokens are unknown to the tokenizer: it has too few words"
    if r.get("chance_reason"):
        yield escape(f"best constant answer not known: {r['chance_reason']}")
    for name, reason in row_facts.kernels(r.get("kernel")):
        if reason and r["device"] == "cpu":
            yield escape(f"kernel {name} ({reason}): native kernels are faster on long inputs")
    origin = [r.get(f"weights_{name}") for name in ("format", "source", "licence")]
    known = f" ({', '.join(filter(None, origin))})" if any(origin) else ""
    yield escape(f"{r['weights_kind']} weights{known}, {r['data_source']} rows")
    if (again := r.get("prefix_first_token_ratio")) is not None:
        yield f"a second question on the same text: first token {times(again)} of a new prompt's"
    if batched := r.get("batched_answers"):
        yield f"{counted(batched, 'answer')} decoded in a batch"
    if (r.get("quality_ns") or 0) > SHOWN_NS:
        parts = (f"{n} {span(r[c] / 1e9)}" for n, c in STAGES.items() if r.get(c) is not None)
        yield f"quality: {' · '.join(parts)}"


def _quality(r: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    if r.get("value") is None:
        return
    is_loss = r.get("higher_is_better") is False
    style = f".{score_digits(not is_loss)}f"
    name = escape(f"{r['metric']} (n={r['n_scored']})")
    base = within(r.get("base_value"), r.get("base_ci_lo"), r.get("base_ci_hi"), style)
    ends = (r.get("value_diff_ci_lo"), r.get("value_diff_ci_hi"))
    difference = within(r.get("value_diff"), *ends, f"+{style}")
    yield name, within(r["value"], r["ci_lo"], r["ci_hi"], style), base, difference
    if is_loss:
        yield "  less is better", "", "", ""
    compared = row_facts.comparison(r)
    if compared == QualityComparison.TRAINED_EACH:
        amounts = (row_facts.training_amount(r.get(arm)) for arm in TRAININGS)
        yield "  training", *amounts, f"{compared}, {row_facts.SEEDS_UNKNOWN}"
    elif r.get("base_value") is not None:
        yield "  weights", "", "", row_facts.comparison_text(r)
    if r.get("value_diff_detectable") is not None:
        yield "  detectable difference", "", "", f"±{r['value_diff_detectable']:{style}}"
    yield from _likelihood(json.loads(r.get("metrics") or "{}"), r.get("base_value"))
    by_length = json.loads(r.get("score_by_length") or "{}")
    if len(by_length) > 1:
        vanilla = json.loads(r.get("base_score_by_length") or "{}")
        for bucket, (n, value) in by_length.items():
            base = f"{vanilla[bucket][1]:{style}}" if bucket in vanilla else ""
            yield f"  of ≤ {int(bucket[1:]):,} tokens (n={n})", f"{value:{style}}", base, ""
    if r.get("chance") is not None:
        low = {BASELINE: r.get("base_ci_lo"), r["method"]: r["ci_lo"]}
        base = "–" if r.get("base_ci_lo") is None else f"{r['chance']:.1f}"
        names = " and ".join(n for n, lo in low.items() if lo is not None and lo <= r["chance"])
        note = f"[yellow]{escape(names)} at chance[/]" if names else ""
        yield "  best constant answer", f"{r['chance']:.1f}", base, note
    elif r.get("chance_reason"):
        yield "  best constant answer", "not known", "", ""


def _likelihood(figures: Mapping[str, Any], base: float | None) -> Iterator[tuple[str, ...]]:
    """The further figures of tasks.metrics.likelihood; `base` is vanilla's nats per token."""
    if "perplexity" not in figures:
        return
    vanilla = "–" if base is None else f"{math.exp(base):.3f}"
    yield "  perplexity", f"{figures['perplexity']:.3f}", vanilla, ""
    first, last = (figures[f"nats_per_token_{part}_quarter"] for part in ("first", "last"))
    yield "  first quarter, last", f"{first:.3f}, {last:.3f}", "", ""
    if "kl" in figures:
        first, last = (figures[f"kl_{part}_quarter"] for part in ("first", "last"))
        yield "  KL to vanilla, nats", f"{figures['kl']:.3g}", "0", ""
        yield "    first quarter, last", f"{first:.3g}, {last:.3g}", "", ""
        yield "  first choice equal", f"{figures['top1_agree']:.1%}", "", ""


def _latency(r: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    latency, engine = Comparison.of(r, "lat"), Comparison.of(r, "engine")
    if latency.median_ns is None:
        return
    against = _against(latency)
    if latency.ratio is not None and math.isinf(latency.ratio_ci_hi or 0):
        few = f"undecided after {counted(latency.n_pairs, 'pair')}: measure=standard takes more"
        against = f"×{latency.ratio:.3f} [yellow]{few}[/]"
    label = "time to first token, ms" if r.get("new_tokens") else "latency, ms"
    yield label, ms(latency.median_ns), ms(latency.base_median_ns), against
    if engine.kernel or engine.reason:
        yield "  exact, same engine", "", ms(engine.base_median_ns), _against(engine)
    if r.get("kernel"):
        base = "torch" if latency.ratio is not None else ""
        names = escape(row_facts.kernel_names(r["kernel"]))
        yield "  kernel", names, base, row_facts.engine_only(r)
    if latency.aa_noise_pct is not None:
        noise = f"±{latency.aa_noise_pct:.1f} % ({latency.n_pairs} pairs)"
        yield "  this host's noise", "", "", noise
    if latency.waits_left_out:
        yield "  waits for a processor", "", "", "left out"
    if latency.ratio is not None:
        yield "  between processes", "", "", escape(between(latency))
    yield from _outside(latency, ".1f")
    solo, to_alone = latency.solo_median_ns, WIDENED_TO_ALONE in (latency.ratio_ci_method or "")
    if solo and (to_alone or abs(solo / latency.median_ns - 1) > SOLO_DIFFERS):
        yield "  without vanilla", ms(solo), "", "interval widened" if to_alone else ""


def _decoding(r: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Times of each new token and of the whole answer; the cost of the cache, and its drift."""
    token, engine = Comparison.of(r, "tpot"), Comparison.of(r, "tpot_engine")
    if token.median_ns is not None:
        own, base = (ms(ns, ".2f") for ns in (token.median_ns, token.base_median_ns))
        yield "time per output token, ms", own, base, _against(token)
        if token.ratio is not None and token.reason:
            yield "  verdict", "", "", f"[yellow]{escape(token.reason)}[/]"
        if engine.kernel not in (None, FUSED_KERNEL):
            yield "  exact, same engine", "", ms(engine.base_median_ns, ".2f"), _against(engine)
        yield from _outside(token, ".2f")
        own, base = (within(r.get(n)) for n in ("tokens_per_s", "base_tokens_per_s"))
        yield "  tokens a second", own, base, ""
        answer = Comparison.of(r, "answer")
        own, base = (ms(ns) for ns in (answer.median_ns, answer.base_median_ns))
        yield f"  answer of {r['new_tokens']} tokens, ms", own, base, _against(answer)
    if r.get("kv_bytes_held") is not None:
        yield _bytes(r, "KV cache, MiB", "kv_bytes_held", "kv_held_ratio")
        if (ratio := r.get("kv_ratio_16bit")) is not None and r["dtype"] in ("float32", "float64"):
            yield "  against 16-bit numbers", "", "", times(ratio)
        if row_facts.kv_agrees(r) is False:
            more, word = f"{mib(r['kv_bytes_resident'])} resident", "[yellow]disagrees[/]"
            yield "  measured", more, mib(r.get("base_kv_bytes_resident")), word
        if r.get("kv_entries") is not None:
            yield "  entries of a KV head", f"{r['kv_entries']:,.0f}", "", ""
        read = _bytes(r, "  read for each token, MiB", "kv_bytes_read_per_token", "kv_read_ratio")
        reported = r.get("kv_read_reported_pct")
        told = " as told by the method" if reported is None else ""
        yield *read[:-1], read[-1] + told
        if row_facts.kv_read_agrees(r) is False:
            more = f"{reported:.0f}% of the bytes counted"
            yield "    read as reported", more, "", "[yellow]disagrees[/]"
    if r.get("decode_kl_mean") is not None:
        first, last = (r[f"decode_kl_{part}_quarter"] for part in ("first", "last"))
        drift = f"first quarter {first:.3g}, last {last:.3g}"
        yield "  KL along the answer", f"{r['decode_kl_mean']:.3g}", "0", drift
        first, last = (r[f"decode_top1_{part}_quarter"] for part in ("first", "last"))
        drift = f"first quarter {first:.0%}, last {last:.0%}"
        yield "    first choice equal", f"{r['decode_top1_agree']:.0%}", "", drift


def _outside(one: Comparison, style: str) -> Iterator[tuple[str, ...]]:
    """The times by the supervisor's clock, and why they replaced the times inside."""
    if one.outside_ratio is not None:
        ends = (one.outside_ratio_ci_lo, one.outside_ratio_ci_hi)
        against = f"×{within(one.outside_ratio, *ends, '.3f')}"
        yield "  timed from outside", "", ms(one.base_outside_ns, style), against
    if one.note:
        yield "  times outside count", "", "", f"[yellow]{escape(one.note)}[/]"
    if one.outside_reason:
        yield "  not timed outside", "", "", f"[yellow]{escape(one.outside_reason)}[/]"


def between(one: Comparison) -> str:
    """The deviation between processes that the interval includes."""
    if one.process_sd_pct is not None:
        return f"±{one.process_sd_pct:.1f} % ({one.n_processes} processes)"
    assumed = f"±{ASSUMED_SD_PCT:g} % assumed" if one.ratio_ci_method else "not seen"
    return f"{assumed}: {one.process_reason or 'an older row, of one process'}"


def _bytes(r: Mapping[str, Any], label: str, column: str, ratio: str) -> tuple[str, ...]:
    return label, mib(r.get(column)), mib(r.get(f"base_{column}")), times(r.get(ratio))


def _memory(r: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    if r.get("rss_peak_delta_bytes") is not None:
        yield _bytes(r, "peak memory, MiB", "rss_peak_delta_bytes", "mem_ratio")
    if r.get("gpu_alloc_delta_bytes") is not None:
        yield _bytes(r, "peak GPU memory, MiB", "gpu_alloc_delta_bytes", "mem_ratio")
    if r.get("rss_peak_delta_bytes") is None and r.get("whole_peak_bytes") is not None:
        yield _bytes(r, "peak of the process, MiB", "whole_peak_bytes", "whole_peak_ratio")


def _fidelity(r: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    if r.get("fid_rel_l2") is not None:
        equal = r.get("fid_top1_agree")
        agree = "" if equal is None else f"first choice equal {equal:.0%}"
        yield "output error (rel. L2)", f"{r['fid_rel_l2']:.3g}", "0", agree
    timed = Comparison.of(r, "lat")
    if timed.timed_rel_l2 is not None:
        agree = f"first choice equal {timed.timed_top1_agree:.0%}"
        yield "  in timed calls", f"{timed.timed_rel_l2:.3g}", "0", agree
    if r.get("dtype_effective") not in (None, r["dtype"]):
        precise = f"[yellow]computes in {escape(r['dtype_effective'])}[/]"
        yield "rounding error inside", f"{r['fid_rounding']:.3g}", "", precise
    if r.get("fid_recall") is not None:
        read = f"of {r['fid_mass_best']:.1%} that as many keys can hold"
        yield "heaviest keys found", f"{r['fid_recall']:.1%}", "", ""
        yield "attention's weight on keys read", f"{r['fid_mass']:.1%}", "100.0%", read
    if r.get("prefill_skipped_frac") is not None:
        yield "scores left out of the prompt", f"{r['prefill_skipped_frac']:.1%}", "0.0%", ""


def _training(r: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    step = Comparison.of(r, "train")
    if step.median_ns is not None:
        yield "training step, ms", ms(step.median_ns), ms(step.base_median_ns), _against(step)
        yield from _outside(step, ".1f")
    if r.get("train_peak_bytes") is not None:
        yield _bytes(r, "its peak memory, MiB", "train_peak_bytes", "train_mem_ratio")


def _rest(r: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    if r.get("positions_learned") is not None:
        again = f"later tokens read the model's {r['positions_learned']:,} again"
        yield "positions", f"{r['positions_learned']:,}", "", again
    if (rotary := r.get("positions_rotary")) is not None:
        yield "positions", f"{rotary:,}", "", "later ones are beyond the model's configuration"
    if exact := r.get("window_layers_exact"):
        yield "window layers", f"{exact}", "", "exact: the method ignores windows"
    if r.get("prompt") == CHAT:
        yield "prompt", CHAT, "", "in the model's chat template"
    if ignored := r.get("generation_ignored"):
        yield "decoding", "greedy", "", escape(f"not applied: {ignored}")
    if longest := longest_input(r):
        yield "longest input", longest, "", ""
    if r.get("tokens_in_mean") is not None:
        seen, read = r["tokens_seen_mean"], r["tokens_in_mean"]
        lost = r.get("answer_cut_frac")
        answers = f", the answer in {lost:.0%} of rows" if lost else ""
        cut = f"{_about(r)}{r['truncated_frac']:.1%} cut{answers}"
        yield "tokens seen / in", f"{seen:,.0f} / {_about(r)}{read:,.0f}", "", cut
    if (timed := r.get("timed_tokens")) and timed < SHORT * r["length"]:
        yield "tokens timed", f"{timed:,.0f} of {r['length']:,}", "", "fill=true times all of them"
    if r.get("n_samples_available") and r["data_source"] != "embedded":
        official = r.get("n_samples_official")
        size = f"officially {official:,}" if official else ""
        counts = f"{r['n_scored']:,} / {r['n_samples_available']:,}"
        yield escape(f"rows scored / in {r['split']}"), counts, "", size


def _about(r: Mapping[str, Any]) -> str:
    """Prefix of a figure that follows from estimated numbers of tokens."""
    return "≈ " if r.get("tokens_in_estimated") else ""


def _against(one: Comparison) -> str:
    """A ratio with its interval and verdict, or why there is none."""
    return escape(one.reason or "–") if one.ratio is None else ratio_text(one)


MAIN = (_quality, _latency, _decoding, _memory, _training)
PARTS = (_quality, _latency, _decoding, _memory, _fidelity, _training, _rest)


def ratio_text(one: Comparison) -> str:
    """A ratio with its interval and verdict."""
    interval = within(one.ratio, one.ratio_ci_lo, one.ratio_ci_hi, ".3f")
    return f"×{interval} {styled(one.verdict)}"
