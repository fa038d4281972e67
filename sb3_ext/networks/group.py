"""Network of a critic over a whole group."""

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


_KEY = 16  # size of a head's queries and keys


class GroupBody(Encoding):
    """Features of groups, of any size and in any order, from observations and actions of their members.

    The observations of each member are encoded once, even if it is in several groups. They pass the dense layers twice:
    alone, and together with the member's action. Residual self-attention of `HEADS` heads (Vaswani et al. 2017)
    relates the members of a group, and a residual dense layer follows the mean over them. In Unity's network, the dense
    layers follow the mean, which reduces the influence of a single member. Its output is normalized, so that large
    values of one sensor outweigh the others. Here only queries and keys use normalized members.

    The caller applies `memory`, the LSTM, if there is one; `features` is the width after it. A hook on `softmax`
    receives the attention: (groups, querying member, attended member, heads).

    :param spec: Specification of the behavior.
    :param settings: Size and kind of the network; `hidden_units` is the width of the attention, too.
    :param normalization: Statistics to share with another network of the same behavior.
    :raises UnityGymError: If no encoder supports a sensor, or the width is no multiple of `HEADS`.
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
            raise UnityGymError(f"hidden_units must be a multiple of {HEADS}, the attention's heads, got {width}")
        self._actions = actions
        action_size = actions.continuous_size + sum(actions.discrete_branches)
        self.embed_state = linear(self.size, inner, kaiming())
        # The baseline starts equal to the value, as random differences of the two would outweigh rare rewards.
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
        group_of_feature: torch.Tensor | None = None,
        own: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return features before the LSTM of g groups without actions, and of m groups with the others' actions.

        :param observations: One tensor (u, *shape) per sensor, of u members.
        :param groups: Members of the g groups.
        :param actions: Raw actions (u, act_dim); without them, features of g groups only.
        :param group_of_feature: Group of each of the m features, int64 (m,).
        :param own: Position in its group of the member whose action is left out, int64 (m,).
        :return: Features (g + m, hidden units).
        """
        members = self.embed_state(self.encode(observations))
        rows, present = groups.rows, groups.present
        if actions is not None and group_of_feature is not None and own is not None:
            acting = members + self.embed_action(action_features(actions, self._actions))
            is_other = torch.arange(rows.shape[1], device=rows.device) != own.unsqueeze(1)
            rows = torch.cat([rows, rows[group_of_feature] + len(members) * is_other])
            present = torch.cat([present, present[group_of_feature]])
            members = torch.cat([members, acting])
        group = self._attend(self.layers(self.activation(members)), rows, present)
        features: torch.Tensor = group + self.group_layer(group)
        return features

    def _attend(self, members: torch.Tensor, rows: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """Return the means of sets after attention (s, width).

        Queries, keys and values of a member are computed once, before they are gathered into its sets.

        :param members: Features of the members (…, width).
        :param rows: Rows of the members in each set (s, maximum size).
        :param present: Whether an entry of `rows` is a member, bool (s, maximum size).
        """
        queries, keys = self.queries_and_keys(self.attention_norm(members)).chunk(2, 1)
        parts = [members, queries, keys, self.values(members)]
        in_sets = nn.functional.embedding(rows, torch.cat(parts, 1))
        member, query, key, value = torch.split(in_sets, [part.shape[1] for part in parts], 2)
        query, key, value = (part.reshape(*rows.shape, HEADS, -1) for part in (query, key, value))
        # Groups are small: elementwise products are faster than many tiny matrix products.
        scores = (query.unsqueeze(2) * key.unsqueeze(1)).sum(4) * _KEY**-0.5  # (s, querying, attended, heads)
        scores = scores.masked_fill(~present[:, None, :, None], ABSENT)
        share = (present / present.sum(1, keepdim=True)).unsqueeze(2)
        # As attention is linear in the values, the mean over the querying members is computed of the attention.
        attention = (self.softmax(scores) * share.unsqueeze(3)).sum(1)
        attended = (attention.unsqueeze(3) * value).sum(1).flatten(1)
        mean: torch.Tensor = (share * member).sum(1) + attended
        return mean
