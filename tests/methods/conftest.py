"""What tests of methods share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def poison() -> Iterator[None]:
    """Memory that nobody wrote reads as NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
