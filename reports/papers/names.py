"""How metrics and printed values are written."""

from __future__ import annotations

from reports.papers.printed import Printed

METRICS = {
    "runtime_total_ms": "runtime, total",
    "runtime_encoder_ms": "runtime, encoder",
    "runtime_vcc_layers_ms": "runtime, VCC layers",
    "attention_time_s": "time in attention",
    "speed_ratio": "speed",
    "memory_ratio": "peak memory",
    "steps_per_second": "steps per second",
    "peak_memory_gb": "peak memory",
    "relative_score": "score kept",
    "zeroscrolls_score": "score",
    "output_error": "output error",
    "em": "EM", "f1": "F1", "auc": "AUC", "mcc": "MCC", "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "f1_ans": "F1, answer", "f1_sup": "F1, support",
    "f1_joint": "F1, joint", "f1_long": "F1, long", "f1_short": "F1, short",
    "f1_full": "F1, full", "f1_verified": "F1, verified",
}  # fmt: skip
UNITS = {"%": "", "points": "", "x vanilla": "× vanilla", "% of vanilla": " % of vanilla"}


def metric_name(metric: str) -> str:
    return METRICS.get(metric, metric)


def printed_text(printed: Printed) -> str:
    """The printed value with its unit, as printed; off a plot, as far as it can be read."""
    if printed.value is None:
        return printed.text
    unit = UNITS.get(printed.unit, f" {printed.unit}")
    about = "≈ " if printed.approximate else ""
    long = printed.approximate and len(printed.text) > 5
    return f"{about}{f'{printed.value:.3g}' if long else printed.text}{unit}"
