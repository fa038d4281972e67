"""`TwinCritic`: two estimates of the value of an action."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sb3_ext.networks.body import Encoding, NetworkBody, NetworkSettings
from sb3_ext.networks.conditioning import GoalConditionedLayer
from sb3_ext.networks.layers import Initializer, kaiming, linear, xavier_rows
from sb3_ext.networks.normalization import RunningNormalization
from unity_gym.specs import BehaviorSpec


class TwinLinear(nn.Module):
    """Two dense layers of one size, in one operation.

    :param inputs: Number of input features.
    :param outputs: Number of output features.
    :param weight: Initializer of the weights (outputs, inputs) of each.
    """

    def __init__(self, inputs: int, outputs: int, weight: Initializer) -> None:
        super().__init__()
        both = [linear(inputs, outputs, weight).weight.detach().T for _ in range(2)]
        self.weight = nn.Parameter(torch.stack(both))
        self.bias = nn.Parameter(torch.zeros(2, 1, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (2, n, outputs) from (2, n, inputs), or from (n, inputs) for both."""
        return torch.baddbmm(self.bias, x.expand(2, -1, -1), self.weight)


class TwinCritic(nn.Module):
    """Critics Q₁ and Q₂ of Fujimoto et al. (2018), for all reward signals.

    Each critic reads the state and the continuous action, and returns one value per discrete action of each branch, or
    one value without branches. The value of an action with several branches is the mean over its discrete actions.

    Both critics share the encoding of the state, to which the action is joined, but not the dense layers. With an LSTM,
    the encoding is a whole `NetworkBody`, so that the recurrent state does not depend on the evaluated action.

    :param spec: Specification of the behavior.
    :param settings: Size and kind of the network.
    :param signals: Number of reward signals.
    :param normalization: Statistics to share with another network of the same behavior.
    :raises UnityGymError: If no encoder supports a sensor.
    """

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        signals: int,
        normalization: RunningNormalization | None = None,
    ) -> None:
        super().__init__()
        action = spec.action_spec
        if settings.memory_size:
            self.body: Encoding = NetworkBody(spec, settings, normalization)
            size, self._goals = self.body.features, []
        else:
            self.body = Encoding(spec, settings, normalization)
            size, self._goals = self.body.size, self.body.goals
        size += action.continuous_size
        self.layers = nn.Sequential()
        for width in settings.widths[:-1] if self._goals else settings.widths:
            self.layers.extend([TwinLinear(size, width, kaiming()), settings.activation_fn()])
            size = width
        self.goal_layers = nn.ModuleList()
        if self._goals:
            width = settings.widths[-1]
            self.goal_layers.extend(GoalConditionedLayer(size, width, len(self._goals)) for _ in range(2))
            size = width
        self._shape = (2, -1, signals, sum(action.discrete_branches) or 1)
        self.head = TwinLinear(size, signals * self._shape[-1], xavier_rows)

    def observe(
        self,
        observations: Sequence[torch.Tensor],
        memory: torch.Tensor | None = None,
        length: int = 1,
        actions: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the state features for `forward`, and the recurrent states afterwards; see `NetworkBody.forward`."""
        if isinstance(self.body, NetworkBody):
            return self.body(observations, memory, length, actions=actions)  # type: ignore[no-any-return]
        return self.body.encode(observations), None

    def forward(self, states: torch.Tensor, actions: torch.Tensor | None) -> torch.Tensor:
        """Return Q-values (2, n, signals, sum of branches or 1).

        :param states: State features of `observe`.
        :param actions: Continuous actions (n, size); None without.
        """
        x = self.layers(states if actions is None else torch.cat([states, actions], 1))
        if self.goal_layers:
            goal, x = self.body.goal_of(states), x.expand(2, -1, -1)
            x = torch.stack([layer(part, goal) for layer, part in zip(self.goal_layers, x, strict=True)])
        return self.head(x).view(self._shape)  # type: ignore[no-any-return]
