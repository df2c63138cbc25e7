"""The words with which a cell ends, and what a ratio says: the values of stored columns."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How a cell, or one measurement of it, ended."""

    OK = "ok"
    OOM_HOST = "oom_host"
    OOM_DEVICE = "oom_device"
    TIMEOUT = "timeout"
    ERROR = "error"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"

    @property
    def exit_code(self) -> int:
        """Of a command that ran one cell: a method that doesn't support a cell hasn't failed."""
        return 0 if self in (Status.OK, Status.UNSUPPORTED) else 1


class Verdict(StrEnum):
    """What a paired ratio says at its interval and this machine's noise."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"


class QualityVerdict(StrEnum):
    """What the difference of two scores says: bench.store.quality_verdict."""

    KEPT = "kept"
    HIGHER = "higher"
    LOWER = "lower"
    UNDECIDED = "undecided"
    UNTELLABLE = "can't discriminate"


class WeightsProtocol(StrEnum):
    """How a method's weights were made: bench.request.protocol."""

    FROM_SCRATCH = "from-scratch"
    FINETUNE = "finetune"
    SWAP = "swap"
    ZERO_SHOT = "zero-shot"


class QualityComparison(StrEnum):
    """With which weights a method's quality and vanilla's were measured: both with the same, or
    each with weights that were trained for it."""

    SAME_WEIGHTS = "same weights"
    TRAINED_EACH = "each trained for itself"
