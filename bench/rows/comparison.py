"""The record of one paired comparison: times of a method and of exact attention.

A row contains up to six. `lat`: a call, or the time to the first token; `train`: a training step;
`tpot`: a new token after the first; these are compared with vanilla. `engine` and `tpot_engine`:
the same against exact attention by the method's own engine. `answer`: a whole answer, derived from
`lat` and `tpot`. The columns of a comparison are the fields of its record after its name and `_`,
such as `lat_ratio`. docs/trust.md explains the calls that are timed from outside.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    get_type_hints,
)

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
"""Name of a comparison → what is timed."""
LATENCY: tuple[Name, ...] = ("lat",)
TO_VANILLA: tuple[Name, ...] = ("lat", "train", "tpot")
TO_ENGINE: tuple[Name, ...] = ("engine", "tpot_engine")
TIMED: tuple[Name, ...] = (*TO_VANILLA, *TO_ENGINE)
ENGINE_OF: dict[Name, Name] = {"lat": "engine", "tpot": "tpot_engine"}
"""Comparison with vanilla → the one with exact attention by the method's engine."""


class About(NamedTuple):
    """What a field means, the comparisons that have it, and whether it is measured: the others are
    derived from those that are."""

    meaning: str
    of: tuple[Name, ...] = tuple(NAMES)
    measured: bool = False


Whole: TypeAlias = int | None
Real: TypeAlias = float | None
Text: TypeAlias = str | None
Samples: TypeAlias = list[int] | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Times in nanoseconds, ratios method / exact attention. A field that a comparison lacks or
    that was not measured is None."""

    median_ns: Annotated[Whole, About("method's median")] = None
    base_median_ns: Annotated[Whole, About("median of exact attention")] = None
    ratio: Annotated[Real, About("geometric mean of the processes' median paired ratios")] = None
    ratio_ci_lo: Annotated[Real, About("lower end of its 95 % interval")] = None
    ratio_ci_hi: Annotated[Real, About("upper end")] = None
    verdict: Annotated[Verdict | None, About("meaning of the ratio on this host")] = None
    # fields of all comparisons with pairs
    ratio_p: Annotated[
        Real, About("larger of the sign-flip p-value and Student's over processes", TIMED)
    ] = None
    reason: Annotated[Text, About("why there is no ratio or no verdict", TIMED, True)] = None
    samples_ns: Annotated[Samples, About("method's side of each pair, one call's", TIMED, True)] = (
        None
    )
    base_samples_ns: Annotated[
        Samples, About("the side of exact attention of each pair", TIMED, True)
    ] = None
    pair_order: Annotated[Text, About("one letter a pair: which arm went first", TIMED, True)] = (
        None
    )
    pair_process: Annotated[
        Samples, About("process of each pair; null: all in one", TIMED, True)
    ] = None
    kernel: Annotated[
        Text, About("kernel of exact attention; torch: it is vanilla", TO_ENGINE, True)
    ] = None
    # fields of the comparisons with vanilla
    ratio_ci_method: Annotated[
        Text, About("what the interval covers; null: an older row, its pairs", TO_VANILLA)
    ] = None
    n_pairs: Annotated[Whole, About("method/vanilla pairs", TO_VANILLA)] = None
    n_processes: Annotated[
        Whole, About("processes that timed the pairs; null in an older row", TO_VANILLA)
    ] = None
    process_sd_pct: Annotated[
        Real, About("standard deviation between their median ratios", TO_VANILLA)
    ] = None
    process_reason: Annotated[Text, About("why one process timed all pairs", TO_VANILLA, True)] = (
        None
    )
    calls_per_sample: Annotated[
        Whole, About("consecutive calls whose mean is a sample", TO_VANILLA, True)
    ] = None
    p10_ns: Annotated[Whole, About("10th percentile, of 64 samples or more", LATENCY)] = None
    p90_ns: Annotated[Whole, About("90th percentile, of 64 samples or more", LATENCY)] = None
    p99_ns: Annotated[Whole, About("99th percentile, of 662 samples or more", LATENCY)] = None
    mad_ns: Annotated[Whole, About("median absolute deviation", LATENCY)] = None
    min_ns: Annotated[Whole, About("minimum", LATENCY)] = None
    solo_median_ns: Annotated[
        Whole, About("method's median without vanilla between its calls", TO_VANILLA, True)
    ] = None
    aa_first_samples_ns: Annotated[
        Samples, About("first side of vanilla/vanilla pairs", TO_VANILLA, True)
    ] = None
    aa_second_samples_ns: Annotated[Samples, About("second side of them", TO_VANILLA, True)] = None
    aa_noise_pct: Annotated[
        Real, About("error of a ratio between equal arms, 90th percentile", TO_VANILLA)
    ] = None
    aa_verdict: Annotated[
        Verdict | None, About("verdict on equal arms: faster, slower warn", TO_VANILLA)
    ] = None
    waits_left_out: Annotated[
        bool | None, About("true: times without waits for a processor", TO_VANILLA, True)
    ] = None
    timed_rel_l2: Annotated[
        Real, About("median relative error of the timed calls' logits", TO_VANILLA, True)
    ] = None
    timed_top1_agree: Annotated[
        Real, About("share of equal first choices in timed calls, 0 to 1", TO_VANILLA, True)
    ] = None
    # calls timed outside: by the supervisor's clock, vanilla in a process without the method
    outside_samples_ns: Annotated[Samples, About("method's calls outside", TO_VANILLA, True)] = None
    base_outside_samples_ns: Annotated[
        Samples, About("vanilla's calls outside", TO_VANILLA, True)
    ] = None
    outside_process: Annotated[
        Samples, About("number of the round of each of these samples", TO_VANILLA, True)
    ] = None
    outside_reason: Annotated[Text, About("why no call was timed outside", TO_VANILLA, True)] = None
    outside_rel_l2: Annotated[
        Real, About("median relative error of logits outside", TO_VANILLA, True)
    ] = None
    outside_top1_agree: Annotated[
        Real, About("share of equal first choices outside, 0 to 1", TO_VANILLA, True)
    ] = None
    base_outside_ns: Annotated[Whole, About("vanilla's median outside", TO_VANILLA)] = None
    base_inside_outside_ratio: Annotated[
        Real, About("vanilla next to the method / outside", TO_VANILLA)
    ] = None
    base_inside_outside_ratio_ci_lo: Annotated[
        Real, About("lower end of its 95 % interval", TO_VANILLA)
    ] = None
    base_inside_outside_ratio_ci_hi: Annotated[Real, About("upper end", TO_VANILLA)] = None
    outside_ratio: Annotated[Real, About("method / vanilla, both timed outside", TO_VANILLA)] = None
    outside_ratio_ci_lo: Annotated[Real, About("lower end of its 95 % interval", TO_VANILLA)] = None
    outside_ratio_ci_hi: Annotated[Real, About("upper end", TO_VANILLA)] = None
    note: Annotated[Text, About("why the ratio is that of times outside", TO_VANILLA)] = None

    @classmethod
    def of(cls, row: Mapping[str, Any], name: Name) -> Self:
        """The comparison of a row. Columns that the row leaves out count as null."""
        return cls(**{field: row.get(column) for field, column in COLUMNS_OF[name].items()})

    def columns(self, name: Name) -> dict[str, Any]:
        """The row's columns of this comparison."""
        return {column: getattr(self, field) for field, column in COLUMNS_OF[name].items()}

    @property
    def measured(self) -> Self:
        """Without what is derived."""
        return replace(self, **dict.fromkeys(DERIVED))

    @property
    def paired(self) -> "Ratio | None":
        """The ratio for further statistics; None where there is none."""
        if None in (self.ratio, self.ratio_ci_lo, self.ratio_ci_hi, self.ratio_p, self.n_pairs):
            return None
        from bench.statistics.paired import Ratio

        return Ratio(self.ratio, self.ratio_ci_lo, self.ratio_ci_hi, self.ratio_p, self.n_pairs)  # type: ignore[arg-type]


_HINTS = get_type_hints(Comparison, include_extras=True)
_ABOUT: dict[str, About] = {
    one.name: _HINTS[one.name].__metadata__[0] for one in fields(Comparison)
}
COLUMNS_OF: dict[Name, dict[str, str]] = {
    name: {field: f"{name}_{field}" for field, about in _ABOUT.items() if name in about.of}
    for name in NAMES
}
"""Name of a comparison → field → column."""
DERIVED = tuple(field for field, about in _ABOUT.items() if not about.measured)
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
        for field, column in COLUMNS_OF[name].items():
            kind, about = _HINTS[field].__origin__, _ABOUT[field]
            yield column, Annotated[kind, f"{about.meaning}; of {timed}"]


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
