"""The network of a critic that reads a whole group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from sb3_ext.networks.actions import action_features
from sb3_ext.networks.body import Encoding, NetworkSettings
from sb3_ext.networks.entities import ABSENT, HEADS
from sb3_ext.networks.layers import linear, normal, swish_layers
from sb3_ext.networks.memory import Memory
from sb3_ext.networks.normalization import RunningNormalization
from unity_gym.errors import UnityGymError
from unity_gym.specs import BehaviorSpec

if TYPE_CHECKING:
    from sb3_ext.groups import Sets


_FEW = 8  # rows of a group up to which products one by one are faster than as many tiny matrix products


class GroupBody(Encoding):
    """What the members of groups see and do → features of the groups, of any size and in any order.

    The observations of each member are encoded once, whatever number of groups it is in, and embedded twice: by
    themselves, and together with the member's action. Residual self-attention of `HEADS` heads (Vaswani et al. 2017)
    relates the members of a group; the mean over them goes through dense layers. As attention is linear in its values,
    the mean is taken first, and the values and the output are computed once a group and not once a member.

    `memory`, where there is any, is for who follows the groups. `features` is the width with it.

    :param spec: what the members observe and do
    :param settings: size and kind; `hidden_units` is the width of the attention, too
    :param normalization: statistics to share with another network of the same behavior
    :raises UnityGymError: a sensor that no encoder takes, or a width that the heads of the attention cannot share
    """

    def __init__(
        self, spec: BehaviorSpec, settings: NetworkSettings, normalization: RunningNormalization | None = None
    ) -> None:
        super().__init__(spec, settings, normalization)
        width, actions = settings.hidden_units, spec.action_spec
        if width % HEADS:
            raise UnityGymError(f"hidden_units is a multiple of {HEADS}, the attention's heads; got {width}")
        self._width, self._actions = width, actions
        small = normal((0.125 / width) ** 0.5)
        action_size = actions.continuous_size + sum(actions.discrete_branches)
        self.embed_state, self.embed_action = linear(self.size, width, small), linear(action_size, width, small)
        self.embedding_norm, self.residual_norm = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.query, self.key, self.value, self.out = (linear(width, width, small) for _ in range(4))
        self.layers = swish_layers(width, width, settings.num_layers)
        self.memory = Memory(width, settings.memory_size) if settings.memory_size else None
        self.features = settings.memory_size // 2 or width

    def forward(
        self,
        observations: Sequence[torch.Tensor],
        groups: Sets,
        actions: torch.Tensor | None = None,
        which: torch.Tensor | None = None,
        own: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Features without memory: of g groups as all members see, and of m groups as one sees and the others act.

        :param observations: one (u, *shape) a sensor, of u members
        :param groups: g sets of them
        :param actions: (u, columns), raw; without them there are none of the latter features
        :param which: int64 (m,), the group
        :param own: int64 (m,), the place in its set of the member whose action is not known
        :return: (g + m, hidden units)
        """
        members = self.embed_state(self.encode(observations))
        rows, most = groups.rows, groups.rows.shape[1]
        # What to look at: all members as they see; and for the baseline of each, the others as they see and act, who
        # stand behind all members as they see.
        place = torch.arange(most, device=rows.device)
        looks = place.unsqueeze(0)
        chosen = torch.arange(len(groups), device=rows.device), rows.new_zeros(len(groups))
        if actions is not None and which is not None and own is not None:
            rows = torch.cat([rows, rows + len(members)], 1)
            members = torch.cat([members, members + self.embed_action(action_features(actions, self._actions))])
            looks = torch.cat([looks, place + most * (place != place.unsqueeze(1))])
            chosen = torch.cat([chosen[0], which]), torch.cat([chosen[1], own + 1])
        attended, mean = self._attend(self.embedding_norm(nn.functional.silu(members)), rows, groups.present, looks)
        value = self.value.weight.reshape(HEADS, -1, self._width).transpose(1, 2)  # (heads, width, width / heads)
        heads = torch.bmm(attended[chosen].transpose(0, 1), value).transpose(0, 1).flatten(1) + self.value.bias
        features: torch.Tensor = self.layers(self.residual_norm(mean[chosen] + self.out(heads)))
        return features

    def _attend(
        self, members: torch.Tensor, rows: torch.Tensor, present: torch.Tensor, looks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the members of g groups attend to, and what they are, each as the mean over them.

        :param members: (…, width)
        :param rows: int64 (g, e), of `members`
        :param present: bool (g, most), the members of the groups
        :param looks: int64 (l, most), places in a group's rows: who is looked at, in l ways
        :return: (g, l, heads, width) and (g, l, width)
        """
        projected = nn.functional.linear(
            members, torch.cat([self.query.weight, self.key.weight]), torch.cat([self.query.bias, self.key.bias])
        )
        table = nn.functional.embedding(rows, torch.cat([members, projected], 1))
        x, query, key = torch.split(table, self._width, 2)
        query, key = (part.reshape(*part.shape[:2], HEADS, -1) for part in (query, key))
        if rows.shape[1] <= _FEW:
            scores = (query.unsqueeze(2) * key.unsqueeze(1)).sum(-1)
        else:
            scores = torch.einsum("gihd,gjhd->gijh", query, key)
        scores = (
            scores[:, looks.unsqueeze(2), looks.unsqueeze(1)] * query.shape[-1] ** -0.5
        )  # (g, l, most, most, HEADS)
        scores = scores + (~present).to(scores.dtype)[:, None, None, :, None] * ABSENT
        share = present / present.sum(1, keepdim=True)
        attention = (scores.softmax(3) * share[:, None, :, None, None]).sum(2)  # (g, l, most, heads)
        shares = share[:, None, :, None].expand(-1, len(looks), -1, -1)
        weights = attention.new_zeros((len(rows), len(looks), rows.shape[1], HEADS + 1)).scatter(
            2, looks[:, :, None].expand(len(rows), -1, -1, HEADS + 1), torch.cat([attention, shares], 3)
        )
        pooled = weights.transpose(2, 3).flatten(1, 2) @ x
        attended, mean = torch.split(pooled.reshape(len(rows), len(looks), HEADS + 1, -1), [HEADS, 1], 2)
        return attended, mean.squeeze(2)
