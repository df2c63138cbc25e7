"""A position bias for tests."""

import torch


class Slope:
    """A bias that grows with distance, differently on each side, with one trainable slope a head;
    it counts the numbers that it returns."""

    def __init__(self, slopes):
        self.slopes = slopes
        self.largest = 0

    def __call__(self, query_positions, key_positions):
        distance = key_positions[:, None, None, :] - query_positions[:, None, :, None]
        self.largest = max(self.largest, distance[0, 0].numel())
        return self.of(distance, self.slopes[:, None, None])

    def diagonals(self, n):
        return self.of(torch.arange(1 - n, n), self.slopes[:, None])

    def of(self, distance, slopes):
        return -slopes * torch.where(distance > 0, 2 * distance, -distance)
