"""One torch thread for all tests: fastest for small networks, and the player needs the other core."""

import torch

import sb3_ext.hardware  # noqa: F401  (what is set after it is imported stays)

torch.set_num_threads(1)
