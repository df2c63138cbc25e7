"""The columns of a row that are about decoding: the time of each new token, what the cache of keys
and values costs, and how far predictions drift along an answer. docs/decoding.md explains them.
The columns of calls that the supervisor times are here too; docs/trust.md explains those.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from bench.status import Verdict

KV_AGREE, KV_SLACK_BYTES = 1.05, 1 << 20


class DecodingColumns(TypedDict, total=False):
    """TPOT: time per output token after the first. N: `new_tokens`."""

    new_tokens: Annotated[int | None, "tokens decoded after each prompt; null: not measured"]
    question: Annotated[str | None, "after: read once the KV cache is made; null: in the prompt"]
    turns: Annotated[int | None, "questions on each text, one after the other; null: one"]
    # time per output token
    tpot_ns: Annotated[int | None, "method's median time of a new token after the first"]
    base_tpot_ns: Annotated[int | None, "vanilla's"]
    tpot_solo_ns: Annotated[int | None, "method's median without vanilla between its tokens"]
    tpot_ratio: Annotated[float | None, "as `ratio`, of the time of a new token"]
    tpot_ratio_ci_lo: Annotated[float | None, "lower end of its 95 % interval"]
    tpot_ratio_ci_hi: Annotated[float | None, "upper end"]
    tpot_ratio_p: Annotated[float | None, "as `ratio_p`"]
    tpot_ratio_ci_method: Annotated[str | None, "what the interval covers"]
    tpot_verdict: Annotated[Verdict | None, "as `verdict`; undecided below 32 new tokens"]
    tpot_reason: Annotated[str | None, "why there is no ratio or no verdict"]
    tpot_aa_noise_pct: Annotated[float | None, "as `aa_noise_pct`"]
    tpot_aa_verdict: Annotated[Verdict | None, "as `aa_verdict`"]
    tpot_n_pairs: Annotated[int | None, "method/vanilla pairs"]
    tpot_n_processes: Annotated[int | None, "processes that timed them"]
    tpot_process_sd_pct: Annotated[float | None, "standard deviation between their median ratios"]
    tpot_process_reason: Annotated[str | None, "why one process timed all pairs"]
    tpot_engine_kernel: Annotated[str | None, "kernel that read its exact twin's new tokens"]
    tpot_engine_ns: Annotated[int | None, "the twin's median time of a new token"]
    tpot_ratio_same_engine: Annotated[float | None, "as `ratio_same_engine`, of a new token"]
    tpot_ratio_same_engine_ci_lo: Annotated[float | None, "lower end of its 95 % interval"]
    tpot_ratio_same_engine_ci_hi: Annotated[float | None, "upper end"]
    tpot_ratio_same_engine_p: Annotated[float | None, "as `ratio_p`"]
    tpot_ratio_same_engine_verdict: Annotated[Verdict | None, "as `verdict`"]
    tpot_ratio_same_engine_reason: Annotated[str | None, "why there is no such ratio"]
    steps_per_sample: Annotated[int | None, "consecutive new tokens whose mean is a sample"]
    tpot_samples_ns: Annotated[list[int] | None, "method's side of each pair, one token's time"]
    base_tpot_samples_ns: Annotated[list[int] | None, "vanilla's side of each pair"]
    tpot_aa_first_samples_ns: Annotated[list[int] | None, "first side of vanilla/vanilla pairs"]
    tpot_aa_second_samples_ns: Annotated[list[int] | None, "second side of them"]
    tpot_pair_order: Annotated[str | None, "one letter a pair: which arm went first"]
    tpot_pair_process: Annotated[list[int] | None, "number of the process that timed each pair"]
    # the whole answer
    tokens_per_s: Annotated[float | None, "new tokens of all rows in a second, after the first"]
    base_tokens_per_s: Annotated[float | None, "vanilla's"]
    answer_ns: Annotated[int | None, "latency of the first token and N − 1 times the TPOT"]
    base_answer_ns: Annotated[int | None, "vanilla's"]
    answer_ratio: Annotated[float | None, "mean of both ratios, weighted by vanilla's time"]
    answer_ratio_ci_lo: Annotated[float | None, "the same mean of their lower ends"]
    answer_ratio_ci_hi: Annotated[float | None, "of their upper ends"]
    answer_verdict: Annotated[Verdict | None, "verdict of that ratio on this host"]
    # the cache of keys and values
    kv_bytes_held: Annotated[int | None, "storage of all that the cache holds after the last token"]
    kv_bytes_held_prefill: Annotated[int | None, "after the prompt"]
    kv_bytes_resident: Annotated[int | None, "resident memory with it less that without it"]
    kv_bytes_read_per_token: Annotated[int | None, "bytes of it that each new token of a row read"]
    kv_bytes_full: Annotated[int | None, "keys and values of all tokens: 2·L·G·d·n·B numbers"]
    kv_entries: Annotated[float | None, "entries of each key head, the mean over layers"]
    base_kv_bytes_held: Annotated[int | None, "vanilla's storage after the last token"]
    base_kv_bytes_held_prefill: Annotated[int | None, "after the prompt"]
    base_kv_bytes_resident: Annotated[int | None, "vanilla's resident memory of its cache"]
    base_kv_bytes_read_per_token: Annotated[int | None, "bytes that vanilla read"]
    kv_held_ratio: Annotated[float | None, "bytes held, method / vanilla"]
    kv_read_ratio: Annotated[float | None, "bytes read for a new token, method / vanilla"]
    kv_reason: Annotated[str | None, "why there is no figure of the cache"]
    # fidelity along vanilla's greedy answer
    decode_kl_mean: Annotated[float | None, "KL divergence from vanilla, mean over N tokens"]
    decode_kl_first_quarter: Annotated[float | None, "over the first quarter of them"]
    decode_kl_last_quarter: Annotated[float | None, "over the last quarter"]
    decode_top1_agree: Annotated[float | None, "share of equal first choices, 0 to 1"]
    decode_top1_first_quarter: Annotated[float | None, "in the first quarter, 0 to 1"]
    decode_top1_last_quarter: Annotated[float | None, "in the last quarter, 0 to 1"]


def input_words(row: Mapping[str, Any]) -> list[str]:
    """Labels in tables for a row whose inputs are not a task's unchanged inputs, each asked once,
    in its prompt."""
    filled = ["inputs filled to the length"] if row.get("filled") else []
    after = ["question after the cache is made"] if row.get("question") else []
    return [*filled, *after, *([f"{row['turns']:.0f} turns"] if row.get("turns") else [])]


def kv_agrees(columns: Mapping[str, Any]) -> bool | None:
    """Whether a cache's resident memory is at most 5 % above the bytes that it reports as held:
    storage kept for growth isn't resident. None where either isn't known."""
    held, resident = columns.get("kv_bytes_held"), columns.get("kv_bytes_resident")
    if held is None or resident is None:
        return None
    return bool(resident <= KV_AGREE * held + KV_SLACK_BYTES)


# The columns of calls that the supervisor times by its own clock, and of what was answered when
# calls were timed. docs/trust.md explains them.


class WitnessColumns(TypedDict, total=False):
    """Of latency; with `tpot_` of new tokens, with `train_` of training steps. Outside: in a
    process without the method for vanilla, and by the supervisor's clock for either."""

    lat_outside_samples_ns: Annotated[list[int] | None, "method's calls by the supervisor's clock"]
    base_outside_samples_ns: Annotated[
        list[int] | None, "vanilla's in a process without the method"
    ]
    outside_process: Annotated[list[int] | None, "number of the round of each of these samples"]
    base_outside_ns: Annotated[int | None, "vanilla's median in a process without the method"]
    base_inside_outside_ratio: Annotated[float | None, "vanilla next to the method / without it"]
    base_inside_outside_ci_lo: Annotated[float | None, "lower end of its 95 % interval"]
    base_inside_outside_ci_hi: Annotated[float | None, "upper end"]
    outside_ratio: Annotated[float | None, "method / vanilla, both by the supervisor's clock"]
    outside_ci_lo: Annotated[float | None, "lower end of its 95 % interval"]
    outside_ci_hi: Annotated[float | None, "upper end"]
    outside_reason: Annotated[str | None, "why no call was timed outside"]
    ratio_note: Annotated[str | None, "why `ratio` is that of times outside"]
    timed_rel_l2: Annotated[float | None, "relative error of the timed calls' logits, the median"]
    timed_top1_agree: Annotated[float | None, "share of equal first choices in timed calls, 0 to 1"]
    outside_rel_l2: Annotated[float | None, "the same error of calls timed outside"]
    outside_top1_agree: Annotated[float | None, "the same share, 0 to 1"]
    waits_left_out: Annotated[bool | None, "true: times without waits for a processor"]
    tpot_lat_outside_samples_ns: Annotated[list[int] | None, "as `lat_outside_samples_ns`"]
    tpot_base_outside_samples_ns: Annotated[list[int] | None, "as `base_outside_samples_ns`"]
    tpot_outside_process: Annotated[list[int] | None, "as `outside_process`"]
    tpot_base_outside_ns: Annotated[int | None, "as `base_outside_ns`"]
    tpot_base_inside_outside_ratio: Annotated[float | None, "as `base_inside_outside_ratio`"]
    tpot_base_inside_outside_ci_lo: Annotated[float | None, "lower end of its 95 % interval"]
    tpot_base_inside_outside_ci_hi: Annotated[float | None, "upper end"]
    tpot_outside_ratio: Annotated[float | None, "as `outside_ratio`"]
    tpot_outside_ci_lo: Annotated[float | None, "lower end of its 95 % interval"]
    tpot_outside_ci_hi: Annotated[float | None, "upper end"]
    tpot_outside_reason: Annotated[str | None, "as `outside_reason`"]
    tpot_ratio_note: Annotated[str | None, "as `ratio_note`"]
    tpot_timed_rel_l2: Annotated[float | None, "as `timed_rel_l2`"]
    tpot_timed_top1_agree: Annotated[float | None, "as `timed_top1_agree`, 0 to 1"]
    tpot_outside_rel_l2: Annotated[float | None, "as `outside_rel_l2`"]
    tpot_outside_top1_agree: Annotated[float | None, "as `outside_top1_agree`, 0 to 1"]
    tpot_waits_left_out: Annotated[bool | None, "as `waits_left_out`"]
    train_lat_outside_samples_ns: Annotated[list[int] | None, "as `lat_outside_samples_ns`"]
    train_base_outside_samples_ns: Annotated[list[int] | None, "as `base_outside_samples_ns`"]
    train_outside_process: Annotated[list[int] | None, "as `outside_process`"]
    train_base_outside_ns: Annotated[int | None, "as `base_outside_ns`"]
    train_base_inside_outside_ratio: Annotated[float | None, "as `base_inside_outside_ratio`"]
    train_base_inside_outside_ci_lo: Annotated[float | None, "lower end of its 95 % interval"]
    train_base_inside_outside_ci_hi: Annotated[float | None, "upper end"]
    train_outside_ratio: Annotated[float | None, "as `outside_ratio`"]
    train_outside_ci_lo: Annotated[float | None, "lower end of its 95 % interval"]
    train_outside_ci_hi: Annotated[float | None, "upper end"]
    train_outside_reason: Annotated[str | None, "as `outside_reason`"]
    train_ratio_note: Annotated[str | None, "as `ratio_note`"]
    train_waits_left_out: Annotated[bool | None, "as `waits_left_out`"]


NAMES = [n for n in WitnessColumns.__annotations__ if not n.startswith(("tpot_", "train_"))]
