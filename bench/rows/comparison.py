"""The record of one paired comparison: times of a method and of exact attention.

A row contains up to six. `lat`: a call, or the time to the first token; `train`: a training step;
`tpot`: a new token after the first; these are compared with vanilla. `engine` and `tpot_engine`:
comparisons with exact attention on the method's own engine. `answer`: a whole answer, derived from
`lat` and `tpot`. The columns of a comparison are the fields of its record after its name and `_`,
such as `lat_ratio`. docs/trust.md explains the calls that are timed from outside.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from bench.status import Verdict

if TYPE_CHECKING:  # numpy takes a tenth of a second
    from bench.statistics.paired import Ratio

Name = Literal["lat", "engine", "train", "tpot", "tpot_engine", "answer"]
NAMES: dict[Name, str] = {
    "lat": "a call",
    "engine": "a call, by the method's engine",
    "train": "a training step",
    "tpot": "a new token",
    "tpot_engine": "a new token, by the method's engine",
    "answer": "a whole answer",
}
"""Name of a comparison → the timed work."""
LATENCY: tuple[Name, ...] = ("lat",)
TO_VANILLA: tuple[Name, ...] = ("lat", "train", "tpot")
TO_ENGINE: tuple[Name, ...] = ("engine", "tpot_engine")
TIMED: tuple[Name, ...] = (*TO_VANILLA, *TO_ENGINE)
ALL: tuple[Name, ...] = tuple(NAMES)
ENGINE_OF: dict[Name, Name] = {"lat": "engine", "tpot": "tpot_engine"}
"""Comparison with vanilla → the one with exact attention on the method's engine."""


def raw(meaning: str, of: tuple[Name, ...] = TO_VANILLA, is_derived: bool = False) -> Any:
    """A field of the comparisons `of`, null by default; its meaning is that of its column."""
    return field(default=None, metadata={"meaning": meaning, "of": of, "is_derived": is_derived})


def derived(meaning: str, of: tuple[Name, ...] = TO_VANILLA) -> Any:
    """A field that follows from raw ones."""
    return raw(meaning, of, is_derived=True)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Times in nanoseconds, ratios method / exact attention. A field that a comparison lacks or
    that was not measured is None."""

    median_ns: int | None = derived("method's median", ALL)
    base_median_ns: int | None = derived("median of exact attention", ALL)
    ratio: float | None = derived("geometric mean of the processes' median paired ratios", ALL)
    ratio_ci_lo: float | None = derived("lower end of its 95 % interval", ALL)
    ratio_ci_hi: float | None = derived("upper end", ALL)
    verdict: Verdict | None = derived("meaning of the ratio on this host", ALL)
    # fields of all comparisons with pairs
    ratio_p: float | None = derived(
        "larger of the sign-flip p-value and Student's over processes", TIMED
    )
    reason: str | None = raw("why there is no ratio or no verdict", TIMED)
    samples_ns: list[int] | None = raw("method's side of each pair, one call's", TIMED)
    base_samples_ns: list[int] | None = raw("the side of exact attention of each pair", TIMED)
    pair_order: str | None = raw("one letter a pair: which arm went first", TIMED)
    pair_process: list[int] | None = raw("process of each pair; null: all in one", TIMED)
    kernel: str | None = raw("kernel of exact attention; torch: it is vanilla", TO_ENGINE)
    # fields of the comparisons with vanilla
    ratio_ci_method: str | None = derived("what the interval covers; null: an older row, its pairs")
    n_pairs: int | None = derived("method/vanilla pairs")
    n_processes: int | None = derived("processes that timed the pairs; null in an older row")
    process_sd_pct: float | None = derived("standard deviation between their median ratios")
    process_reason: str | None = raw("why one process timed all pairs")
    calls_per_sample: int | None = raw("consecutive calls whose mean is a sample")
    p10_ns: int | None = derived("10th percentile, of 64 samples or more", LATENCY)
    p90_ns: int | None = derived("90th percentile, of 64 samples or more", LATENCY)
    p99_ns: int | None = derived("99th percentile, of 662 samples or more", LATENCY)
    mad_ns: int | None = derived("median absolute deviation", LATENCY)
    min_ns: int | None = derived("minimum", LATENCY)
    solo_median_ns: int | None = raw("method's median without vanilla between its calls")
    aa_first_samples_ns: list[int] | None = raw("first side of vanilla/vanilla pairs")
    aa_second_samples_ns: list[int] | None = raw("second side of them")
    aa_noise_pct: float | None = derived("error of a ratio between equal arms, 90th percentile")
    aa_verdict: Verdict | None = derived("verdict on equal arms: faster, slower warn")
    waits_left_out: bool | None = raw("true: times without waits for a processor")
    timed_rel_l2: float | None = raw("median relative error of the timed calls' logits")
    timed_top1_agree: float | None = raw("share of equal first choices in timed calls, 0 to 1")
    # calls timed outside: by the supervisor's clock, vanilla in a process without the method
    outside_samples_ns: list[int] | None = raw("method's calls outside")
    base_outside_samples_ns: list[int] | None = raw("vanilla's calls outside")
    outside_process: list[int] | None = raw("number of the round of each of these samples")
    outside_reason: str | None = raw("why no call was timed outside")
    outside_rel_l2: float | None = raw("median relative error of logits outside")
    outside_top1_agree: float | None = raw("share of equal first choices outside, 0 to 1")
    base_outside_ns: int | None = derived("vanilla's median outside")
    base_inside_outside_ratio: float | None = derived("vanilla next to the method / outside")
    base_inside_outside_ratio_ci_lo: float | None = derived("lower end of its 95 % interval")
    base_inside_outside_ratio_ci_hi: float | None = derived("upper end")
    outside_ratio: float | None = derived("method / vanilla, both timed outside")
    outside_ratio_ci_lo: float | None = derived("lower end of its 95 % interval")
    outside_ratio_ci_hi: float | None = derived("upper end")
    note: str | None = derived("why the ratio is that of times outside")

    @classmethod
    def of(cls, row: Mapping[str, Any], name: Name) -> Self:
        """The comparison of a row. Columns that the row leaves out count as null."""
        return cls(**{field: row.get(column) for field, column in COLUMNS_OF[name].items()})

    def columns(self, name: Name) -> dict[str, Any]:
        """The row's columns of this comparison."""
        return {column: getattr(self, field) for field, column in COLUMNS_OF[name].items()}

    @property
    def measured(self) -> Self:
        """The comparison without derived fields."""
        return replace(self, **dict.fromkeys(DERIVED))

    @property
    def paired(self) -> "Ratio | None":
        """The ratio for further statistics; None if there is none."""
        if None in (self.ratio, self.ratio_ci_lo, self.ratio_ci_hi, self.ratio_p, self.n_pairs):
            return None
        from bench.statistics.paired import Ratio

        return Ratio(self.ratio, self.ratio_ci_lo, self.ratio_ci_hi, self.ratio_p, self.n_pairs)  # type: ignore[arg-type]


COLUMNS_OF: dict[Name, dict[str, str]] = {
    name: {f.name: f"{name}_{f.name}" for f in fields(Comparison) if name in f.metadata["of"]}
    for name in NAMES
}
"""Name of a comparison → field → column."""
DERIVED = tuple(f.name for f in fields(Comparison) if f.metadata["is_derived"])
SIDES = ("samples_ns", "base_samples_ns", "aa_first_samples_ns", "aa_second_samples_ns")


def pooled(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The measured fields of one comparison from those of several processes."""
    sides = {side: [ns for one in parts for ns in one[side]] for side in SIDES if side in parts[0]}
    if "base_samples_ns" not in sides:
        return {**parts[0], **sides}
    return {
        **parts[0],
        **sides,
        "pair_order": "".join(one["pair_order"] for one in parts),
        "pair_process": [i for i, one in enumerate(parts) for _ in one["samples_ns"]],
    }


def annotations() -> Iterator[tuple[str, Any]]:
    """Name and annotated type, as in `Row`, of each column of each comparison."""
    for name, timed in NAMES.items():
        for f in fields(Comparison):
            if column := COLUMNS_OF[name].get(f.name):
                yield column, Annotated[f.type, f"{f.metadata['meaning']}; of {timed}"]


RENAMED = dict(COLUMNS_OF["lat"]) | {
    "ratio_reason": "lat_reason",
    "steps_per_sample": "tpot_calls_per_sample",
    "tpot_ns": "tpot_median_ns",
    "base_tpot_ns": "tpot_base_median_ns",
    "tpot_solo_ns": "tpot_solo_median_ns",
    "base_tpot_samples_ns": "tpot_base_samples_ns",
    "train_step_ns": "train_median_ns",
    "base_train_step_ns": "train_base_median_ns",
    "base_train_samples_ns": "train_base_samples_ns",
    "engine_median_ns": "engine_base_median_ns",
    "engine_samples_ns": "engine_base_samples_ns",
    "engine_lat_samples_ns": "engine_samples_ns",
    "tpot_engine_ns": "tpot_engine_base_median_ns",
    "answer_ns": "answer_median_ns",
    "base_answer_ns": "answer_base_median_ns",
}
"""Columns of schema 1 → their names in schema 2."""
for _old, _new in {"": "lat", "tpot_": "tpot", "train_": "train"}.items():
    RENAMED |= {f"{_old}ratio_note": f"{_new}_note"}
    RENAMED |= {f"{_old}lat_outside_samples_ns": f"{_new}_outside_samples_ns"}
    for _end in ("lo", "hi"):
        for _ratio in ("outside", "base_inside_outside"):
            RENAMED |= {f"{_old}{_ratio}_ci_{_end}": f"{_new}_{_ratio}_ratio_ci_{_end}"}
for _old, _new in {"": "engine", "tpot_": "tpot_engine"}.items():
    for _end in ("", "_ci_lo", "_ci_hi", "_p"):
        RENAMED |= {f"{_old}ratio_same_engine{_end}": f"{_new}_ratio{_end}"}
    for _end in ("verdict", "reason"):
        RENAMED |= {f"{_old}ratio_same_engine_{_end}": f"{_new}_{_end}"}
