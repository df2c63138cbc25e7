"""The columns of calls that the supervisor times by its own clock, and of what was answered when
calls were timed. docs/trust.md explains them."""

from typing import Annotated, TypedDict


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
