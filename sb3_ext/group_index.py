"""`GroupIndex`: sets of rows of a table, such as the members of each group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sb3_ext.hardware import to_device
from unity_gym.specs import Array


@dataclass
class GroupIndex:
    """Sets of rows of a table: int64 (sets, most members), and bool of the same shape, False where a set has fewer.

    They are on the CPU, as the sizes of selected sets would have to be read from a GPU; `to_device` copies them.
    """

    rows: torch.Tensor
    present: torch.Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: torch.Tensor) -> GroupIndex:
        """Return some of the sets, padded to the size of the largest."""
        present = self.present[indices]
        most = int(present.sum(1).max()) if len(present) else 0
        return GroupIndex(self.rows[indices, :most], present[:, :most])  # the members of a set precede the gaps

    def used(self) -> tuple[torch.Tensor, GroupIndex]:
        """Return the rows of the table that are in any set, each once, and the sets as indices into these rows."""
        used, place = torch.unique(self.rows[self.present], return_inverse=True)
        rows = torch.zeros_like(self.rows)
        rows[self.present] = place
        return used, GroupIndex(rows, self.present)

    def to_device(self, device: torch.device) -> GroupIndex:
        """Return the sets on a device."""
        return GroupIndex(to_device(self.rows, device), to_device(self.present, device))

    @classmethod
    def from_pairs(cls, pairs: Array, count: int) -> GroupIndex:
        """Return `count` sets from pairs int64 (pairs, 2) of the index of a set and a row."""
        sets, rows = pairs.T
        order = np.argsort(sets, kind="stable")
        sets, rows = sets[order], rows[order]
        sizes = np.bincount(sets, minlength=count)
        position = np.arange(len(sets)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        grid = np.zeros((count, sizes.max(initial=0)), np.int64)
        grid[sets, position] = rows
        present = np.arange(grid.shape[1]) < sizes[:, np.newaxis]
        return cls(torch.from_numpy(grid), torch.from_numpy(present))
