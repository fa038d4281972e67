"""Small networks learn fastest on one thread, above all beside a player on the other core."""

import torch

torch.set_num_threads(1)
