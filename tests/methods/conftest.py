"""Fixtures of the tests of methods."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def poison() -> Iterator[None]:
    """Uninitialized memory is filled with NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
