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


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny models run several times as fast on one thread; the native kernels keep them all."""
    threads = torch.get_num_threads()
    if "kernels" not in request.path.name:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
