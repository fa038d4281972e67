"""LSTM memory."""

from __future__ import annotations

import torch
from torch import nn


class Memory(nn.Module):
    """One LSTM layer (Hochreiter & Schmidhuber 1997) whose state is a plain vector: hidden half first, then cell.

    :param inputs: features in
    With `action_size`, the LSTM also reads the previous action of each row, and the state vector starts with that of
    the next row.

    :param inputs: features in
    :param size: Size of the LSTM's state, even; the features out are half of it.
    :param action_size: Numbers of the previous action; 0 to read none.
    """

    def __init__(self, inputs: int, size: int, action_size: int = 0) -> None:
        super().__init__()
        hidden = size // 2
        self.action_size, self.state_size = action_size, action_size + size
        self.lstm = nn.LSTM(action_size + inputs, hidden, batch_first=True)
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
        self,
        x: torch.Tensor,
        memory: torch.Tensor,
        length: int,
        counts: torch.Tensor | None = None,
        actions: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sequences of `length` rows each, one after another.

        :param x: (sequences · length, inputs)
        :param memory: (sequences, state size), before the first row of each
        :param counts: int64 (sequences,), how many rows of each count; None for all
        :param actions: (sequences · length, action size), of the rows; of the last row of each sequence, it can be
            left out. None with `length` 1: the action that starts the memory afterwards is then that before the row.
        :return: (sequences · length, size / 2), and the memory (sequences, state size) after the last row of each that
            counts
        """
        hidden = self.lstm.hidden_size
        last, memory = memory[:, : self.action_size], memory[:, self.action_size :]
        h, c = memory[None, :, :hidden], memory[None, :, hidden:]
        x, state = x.reshape(-1, length, x.shape[-1]), (h.contiguous(), c.contiguous())
        if self.action_size:
            before = last.unsqueeze(1)
            if actions is not None:
                actions = actions.reshape(len(memory), -1, self.action_size).to(x.dtype)
                before, last = torch.cat([before, actions], 1)[:, :length], actions[:, -1]
            x = torch.cat([before, x], 2)
        if counts is None:
            out, (h, c) = self.lstm(x, state)
        else:
            packed = nn.utils.rnn.pack_padded_sequence(x, counts.cpu(), batch_first=True, enforce_sorted=False)
            packed, (h, c) = self.lstm(packed, state)
            out, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=length)
        after = torch.cat([h, c], -1).squeeze(0)
        return out.reshape(-1, out.shape[-1]), torch.cat([last, after], 1) if self.action_size else after
