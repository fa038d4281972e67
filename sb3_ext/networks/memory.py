"""LSTM layer."""

from __future__ import annotations

import torch
from torch import nn


class Memory(nn.Module):
    """LSTM layer (Hochreiter & Schmidhuber 1997) whose state is one vector: the hidden half, then the cell half.

    With `action_size`, the LSTM also reads the previous action of each row. The state vector then starts with the
    previous action of the next row.

    :param inputs: Number of input features.
    :param size: Size of the LSTM's state, even; the number of output features is half of it.
    :param action_size: Number of features of the previous action; 0 to read none.
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
                        parameter[hidden : 2 * hidden] = 1  # forget gate: keep the cell state at first

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor,
        length: int,
        counts: torch.Tensor | None = None,
        actions: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Apply the LSTM to sequences of `length` rows each, one after another.

        :param x: Features (sequences · length, inputs).
        :param memory: State vectors (sequences, state size) before the first row of each sequence.
        :param length: Rows per sequence.
        :param counts: Number of valid rows per sequence, int64 (sequences,); None for all.
        :param actions: Features of the rows' actions (sequences · length, action size); those of each sequence's last
            row are optional. None with `length` 1: the state afterwards then starts with the action before the row.
        :return: Features (sequences · length, size / 2), and the state vectors (sequences, state size) after the last
            valid row of each sequence.
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
