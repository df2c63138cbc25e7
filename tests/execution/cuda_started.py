"""A module that starts CUDA when it is imported, as far as a fork can tell."""

import torch

torch.cuda._is_in_bad_fork = lambda: True
