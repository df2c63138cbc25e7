"""Sizes of the decoder's layer in decoder.py, and of a padded batch."""

import torch

HEADS, KEY_HEADS, SIZE, SCALE = 4, 2, 8, 0.4
N, PROMPT = 60, 50
VALID = torch.arange(N) >= torch.tensor([[0], [21], [49]])
"""Rows of 50, 29 and 1 tokens in the prompt."""
