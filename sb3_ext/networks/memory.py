"""LSTM memory."""

from __future__ import annotations

import torch
from torch import nn


class Memory(nn.Module):
    """One LSTM layer (Hochreiter & Schmidhuber 1997) whose state is a plain vector: hidden half first, then cell.

    :param inputs: features in
    :param size: numbers of memory, even; the features out are half of it
    """

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        hidden = size // 2
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        with torch.no_grad():
            for name, parameter in self.lstm.named_parameters():
                if name.startswith("weight"):
                    for gate in parameter.chunk(4):
                        nn.init.xavier_uniform_(gate)
                else:
                    parameter.zero_()
                    if name.startswith("bias_ih"):
                        parameter[hidden : 2 * hidden] = 1  # the forget gate: remember at first

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, length: int, counts: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sequences of `length` rows each, one after another.

        :param x: (sequences · length, inputs)
        :param memory: (sequences, size), before the first row of each
        :param counts: int64 (sequences,), how many rows of each count; None for all
        :return: (sequences · length, size / 2), and the memory (sequences, size) after the last row of each that counts
        """
        hidden = self.lstm.hidden_size
        h, c = memory[None, :, :hidden], memory[None, :, hidden:]
        x, state = x.reshape(-1, length, x.shape[-1]), (h.contiguous(), c.contiguous())
        if counts is None:
            out, (h, c) = self.lstm(x, state)
        else:
            packed = nn.utils.rnn.pack_padded_sequence(x, counts.cpu(), batch_first=True, enforce_sorted=False)
            packed, (h, c) = self.lstm(packed, state)
            out, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=length)
        return out.reshape(-1, out.shape[-1]), torch.cat([h, c], -1).squeeze(0)
