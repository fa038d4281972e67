"""The network of a critic that reads a whole group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from sb3_ext.networks.actions import action_features
from sb3_ext.networks.body import Encoding, NetworkSettings
from sb3_ext.networks.entities import HEADS, ResidualSelfAttention, small
from sb3_ext.networks.layers import swish_layers
from sb3_ext.networks.memory import Memory
from sb3_ext.networks.normalization import RunningNormalization
from unity_gym.errors import UnityGymError
from unity_gym.specs import BehaviorSpec

if TYPE_CHECKING:
    from sb3_ext.groups import Sets


class GroupBody(Encoding):
    """What the members of groups see and do → features of the groups, of any size and in any order.

    The observations of each member are encoded once, whatever number of sets it is in, and embedded twice: by
    themselves, and with the member's action. Self-attention relates the members of a set; dense layers follow, and
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
        self._actions = actions
        action_size = actions.continuous_size + sum(actions.discrete_branches)
        self.embed_state = swish_layers(self.size, width, 1, small(width))
        self.embed_action = swish_layers(self.size + action_size, width, 1, small(width))
        self.relation = ResidualSelfAttention(width)
        self.layers = swish_layers(width, width, settings.num_layers)
        self.memory = Memory(width, settings.memory_size) if settings.memory_size else None
        self.features = settings.memory_size // 2 or width

    def forward(self, observations: Sequence[torch.Tensor], actions: torch.Tensor | None, sets: Sets) -> torch.Tensor:
        """Features (k, hidden units) of k sets, without memory.

        :param observations: one (u, *shape) a sensor, of u members
        :param actions: (u, columns), raw; None where no set has members that act
        :param sets: of the members 0…u − 1 as they see, and of u…2 u − 1, the same members as they see and act
        """
        encoded = self.encode(observations)
        members = self.embed_state(encoded)
        if actions is not None:
            acting = torch.cat([encoded, action_features(actions, self._actions)], 1)
            members = torch.cat([members, self.embed_action(acting)])
        table = torch.cat(self.relation.project(members), 1)
        projected = nn.functional.embedding(sets.rows, table).chunk(4, -1)
        features: torch.Tensor = self.layers(self.relation.relate(projected, sets.present))
        return features
