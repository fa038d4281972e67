"""The network of a critic that reads a whole group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from sb3_ext.networks.actions import action_features
from sb3_ext.networks.body import Encoding, NetworkSettings
from sb3_ext.networks.entities import ABSENT, HEADS
from sb3_ext.networks.layers import dense_layers, kaiming, linear, normal
from sb3_ext.networks.memory import Memory
from sb3_ext.networks.normalization import RunningNormalization
from unity_gym.errors import UnityGymError
from unity_gym.specs import BehaviorSpec

if TYPE_CHECKING:
    from sb3_ext.group_index import GroupIndex


_KEY = 16  # numbers that a head compares two members by


class GroupBody(Encoding):
    """What the members of groups see and do → features of the groups, of any size and in any order.

    The observations of each member are encoded once, whatever number of groups it is in, and go through the dense
    layers twice: by themselves, and together with the member's action. Residual self-attention of `HEADS` heads
    (Vaswani et al. 2017) relates the members of a group, and a residual dense layer follows the mean over them. Unity's
    network has the dense layers behind the mean, where a member is one part of many, and norms what it hands on, so
    that a large number of one sensor drowns the others. Here only queries and keys are of normed members.

    `memory`, where there is any, is for who follows the groups. `features` is the width with it. A hook on `softmax`
    sees the attention: (sets, who looks, at whom, heads).

    :param spec: what the members observe and do
    :param settings: size and kind; `hidden_units` is the width of the attention, too
    :param normalization: statistics to share with another network of the same behavior
    :raises UnityGymError: a sensor that no encoder takes, or a width that the heads of the attention cannot share
    """

    def __init__(
        self, spec: BehaviorSpec, settings: NetworkSettings, normalization: RunningNormalization | None = None
    ) -> None:
        super().__init__(spec, settings, normalization)
        widths, actions, activation = settings.widths, spec.action_spec, settings.activation_fn
        if not widths:
            raise UnityGymError("net_arch must have at least one layer for the group critic, got []")
        inner, width = widths[0], widths[-1]
        if width % HEADS:
            raise UnityGymError(f"hidden_units is a multiple of {HEADS}, the attention's heads; got {width}")
        self._actions = actions
        action_size = actions.continuous_size + sum(actions.discrete_branches)
        self.embed_state = linear(self.size, inner, kaiming())
        # A baseline starts as the value: chance differences of the two would drown rare rewards.
        self.embed_action = linear(action_size, inner, nn.init.zeros_)
        self.activation = activation()
        self.layers = dense_layers(inner, widths[1:], activation)
        self.attention_norm = nn.LayerNorm(width, elementwise_affine=False)
        small = normal((0.125 / width) ** 0.5)
        self.queries_and_keys = linear(width, 2 * HEADS * _KEY, small)
        self.values = linear(width, width, small)
        self.softmax = nn.Softmax(2)
        self.group_layer = dense_layers(width, [width], activation)
        self.memory = Memory(width, settings.memory_size) if settings.memory_size else None
        self.features = settings.memory_size // 2 or width

    def forward(
        self,
        observations: Sequence[torch.Tensor],
        groups: GroupIndex,
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
        rows, present = groups.rows, groups.present
        if actions is not None and which is not None and own is not None:
            acting = members + self.embed_action(action_features(actions, self._actions))
            is_other = torch.arange(rows.shape[1], device=rows.device) != own.unsqueeze(1)
            rows = torch.cat([rows, rows[which] + len(members) * is_other])
            present = torch.cat([present, present[which]])
            members = torch.cat([members, acting])
        group = self._attend(self.layers(self.activation(members)), rows, present)
        features: torch.Tensor = group + self.group_layer(group)
        return features

    def _attend(self, members: torch.Tensor, rows: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """Members (…, width), sets of them (s, most) and who is in a set (s, most) → the sets' means (s, width).

        What a member looks for, is found by and tells is computed before it is put into its sets.
        """
        queries, keys = self.queries_and_keys(self.attention_norm(members)).chunk(2, 1)
        parts = [members, queries, keys, self.values(members)]
        in_sets = nn.functional.embedding(rows, torch.cat(parts, 1))
        member, query, key, value = torch.split(in_sets, [part.shape[1] for part in parts], 2)
        query, key, value = (part.reshape(*rows.shape, HEADS, -1) for part in (query, key, value))
        # Groups are small: products one by one are faster than as many tiny matrix products.
        scores = (query.unsqueeze(2) * key.unsqueeze(1)).sum(4) * _KEY**-0.5  # (s, who looks, at whom, heads)
        scores = scores.masked_fill(~present[:, None, :, None], ABSENT)
        share = (present / present.sum(1, keepdim=True)).unsqueeze(2)
        # As attention is linear in the values, the mean over those who look is taken of the attention.
        attention = (self.softmax(scores) * share.unsqueeze(3)).sum(1)
        attended = (attention.unsqueeze(3) * value).sum(1).flatten(1)
        mean: torch.Tensor = (share * member).sum(1) + attended
        return mean
