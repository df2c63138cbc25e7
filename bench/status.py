"""The status of a cell, stored or planned, and verdicts on ratios: the values of stored columns."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The end of a cell or of a measurement of it. RETIRED: a stored row that no longer counts."""

    OK = "ok"
    OOM_HOST = "oom_host"
    OOM_DEVICE = "oom_device"
    TIMEOUT = "timeout"
    ERROR = "error"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"
    RETIRED = "retired"

    @property
    def exit_code(self) -> int:
        """Exit code of a command that ran one cell; an unsupported cell is not a failure."""
        return 0 if self in (Status.OK, Status.UNSUPPORTED) else 1


class PlanState(StrEnum):
    """State of a cell in the plan of a sweep."""

    DONE = "done"
    TO_DO = "to do"
    UNSUPPORTED = "unsupported"
    REFUSED = "refused"
    OVER_BUDGET = "over budget"


class Verdict(StrEnum):
    """Verdict on a paired ratio, by its interval and this machine's noise."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"


class QualityVerdict(StrEnum):
    """Verdict on the difference of two scores: bench.rows.row_facts."""

    KEPT = "kept"
    HIGHER = "higher"
    LOWER = "lower"
    UNDECIDED = "undecided"
    UNTELLABLE = "can't discriminate"


class WeightsProtocol(StrEnum):
    """The origin of a method's weights: see bench.request.weights."""

    FROM_SCRATCH = "from-scratch"
    FINETUNE = "finetune"
    SWAP = "swap"
    ZERO_SHOT = "zero-shot"


class QualityComparison(StrEnum):
    """Weights with which a method's quality and vanilla's were measured: both with the same, or
    each with weights that were trained for it."""

    SAME_WEIGHTS = "same weights"
    TRAINED_EACH = "each trained for itself"
