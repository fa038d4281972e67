"""`OnnxPolicy`: a model file of Unity ML-Agents as a policy outside of Unity."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from gymnasium import spaces
from onnx import numpy_helper
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first, maybe_transpose
from stable_baselines3.common.utils import is_vectorized_observation
from stable_baselines3.common.vec_env import VecTransposeImage

from sb3_ext.agents import Env, SpaceAdapter, agent_spaces, allowed_actions, memory_before, unity_behavior
from unity_gym.errors import UnityGymError
from unity_gym.spaces import ObservationLayout, action_space
from unity_gym.specs import (
    ActionSpec,
    ActionTuple,
    Array,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)

_VERSIONS = (2, 3)
_MASKS, _MEMORY_IN, _MEMORY_OUT = "action_masks", "recurrent_in", "recurrent_out"
_LOST_MEMORY = "memories"  # input of recurrent files before mlagents 0.25
_CONSTANTS = (
    *("version_number", "memory_size", "continuous_action_output_shape", "discrete_action_output_shape"),
    *("is_continuous_control", "action_output_shape"),  # of files without hybrid actions
)
_KINDS = ("continuous", "discrete")
_REMEDY = "Give OnnxPolicy the environment that the file was made for, or its spec and form of observations"
_ERRORS_ONLY = 3  # Unity's files declare one row for some outputs with a row per agent, which warns at each call


class OnnxPolicy:
    """Policy of a model file of Unity's trainer or `export_onnx`, of version 3 or the older version 2.

    It has the `predict` of an SB3 model, so that `evaluate_policy(OnnxPolicy(path, env), env)` works. Observations and
    actions have the form of the environment. Without `env` and `spec`, the observations are the inputs of the file: one
    array, or a dict of them by name. `version`, `memory_size` and `spec` describe the file. Entities are always
    (n, entities, size), also in files that were exported for Barracuda.

    :param path: Path of the file.
    :param env: A `UnityVecEnv`, what `gymnasium.make` or `make_vec` returns, or any environment with one sensor per key
        of its observation space, in sensor order. Images with the channels last are transposed, as SB3 does.
    :param spec: Specification of the behavior, instead of `env`.
    :param observations: Form of the observations with `spec`: "split" or "sensors", see `ObservationLayout`.
    :param seed: Seed of the sampled actions, also of ONNX sessions that this process starts later.
    :raises UnityGymError: If the file cannot be read, is not a model of ML-Agents, or has other sensors or actions; or
        if onnxruntime is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        env: Env | None = None,
        *,
        spec: BehaviorSpec | None = None,
        observations: str = "split",
        seed: int | None = None,
    ) -> None:
        if env is not None and spec is not None:
            raise UnityGymError("OnnxPolicy takes env or spec, not both: the environment has its specification")
        self.path = Path(path)
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._model = self._read()
        _remove_empty_inputs(self._model.graph)
        _put_agents_first(self._model.graph)
        self._session = self._start_session(self._model)
        self._noiseless: Any = None
        self._inputs = {entry.name: tuple(entry.shape[1:]) for entry in self._session.get_inputs()}
        self._outputs = {entry.name for entry in self._session.get_outputs()}
        self._constants = self._read_constants()
        self.version, self.memory_size = (int(self._constants[name][0]) for name in _CONSTANTS[:2])
        if self.version not in _VERSIONS:
            raise self._error(f"is of version {self.version}; known are {_VERSIONS}: export it again with ML-Agents")
        if _LOST_MEMORY in self._inputs:
            raise self._error(
                "reads a recurrent state and does not return the next one, as files of mlagents before 0.25: "
                "export it again with a later version"
            )
        self._action_outputs = self._find_action_outputs()
        self.observation_space, self.action_space, unity = self._form(env, spec, observations)
        self._adapter = SpaceAdapter(self.observation_space, self.action_space, unity)
        self.spec = self._adapter.spec
        self._feeds = _feeds(self.spec.observation_specs, self.version)
        self._check_sensors()
        self._transposed = {name for name in self._feeds if self._is_transposed(name)}
        self._check_memory()
        self._check_actions()

    def _error(self, words: str) -> UnityGymError:
        return UnityGymError(f"the model file {self.path} {words}")

    def _read(self) -> onnx.ModelProto:
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}; give the path of an .onnx file") from error
        if not content:
            raise self._error("is empty (0 bytes): copy or export it again")
        try:
            model = onnx.load_from_string(content)
            onnx.load_external_data_for_model(model, str(self.path.parent))  # newer torch writes Name.onnx.data, too
            onnx.checker.check_model(model)
        except Exception as error:  # protobuf's and the checker's exceptions have no common base class
            raise self._error(
                f"is no ONNX model, or a damaged one ({_first_line(error)}): copy or export it again"
            ) from error
        return model

    def _start_session(self, model: onnx.ModelProto) -> Any:
        try:
            import onnxruntime
        except ImportError as error:
            raise UnityGymError("OnnxPolicy needs onnxruntime: pip install 'unity-gym[onnx]'") from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        options.intra_op_num_threads = 1  # fastest for small networks, and leaves the other cores to the players
        if self._seed is not None:
            onnxruntime.set_seed(self._seed)
        try:
            return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise self._error(f"cannot be run by onnxruntime: {_first_line(error)}") from error

    def _read_constants(self) -> dict[str, Array]:
        """Return the constants that describe the file, by name, each as one row."""
        names = [name for name in _CONSTANTS if name in self._outputs]
        if names[:2] != list(_CONSTANTS[:2]):
            raise self._error(
                f"is none of ML-Agents: its outputs {sorted(self._outputs)} lack version_number or memory_size. "
                "Export one with PPO.export_onnx or a later mlagents-learn"
            )
        zeros = {
            name: np.zeros((1, *(size if isinstance(size, int) else 1 for size in shape)), np.float32)
            for name, shape in self._inputs.items()
        }
        try:
            values = self._session.run(names, zeros)
        except Exception as error:
            raise self._error(f"fails on zeros: {_first_line(error)}") from error
        return {name: np.asarray(value).reshape(-1) for name, value in zip(names, values, strict=True)}

    def _find_action_outputs(self) -> dict[str, str]:
        """Return the output with the actions of each kind. Before hybrid actions, files had one for either kind.

        :raises UnityGymError: If there is none, or it is of the first files, which also had action_probs: they gave
            sampled indices and unscaled continuous actions.
        """
        found = {kind: f"{kind}_actions" for kind in _KINDS if f"{kind}_actions" in self._outputs}
        single = {"action", "is_continuous_control", "action_output_shape"}
        if not found and single <= self._outputs and "action_probs" not in self._outputs:
            found = {_KINDS[0] if self._constants["is_continuous_control"][0] else _KINDS[1]: "action"}
        if not found:
            raise self._error(
                f"has no known output of actions among {sorted(self._outputs)}: export it again with ML-Agents"
            )
        return found

    def _form(
        self, env: Env | None, spec: BehaviorSpec | None, observations: str
    ) -> tuple[spaces.Space[Any], spaces.Space[Any], tuple[BehaviorSpec, ObservationLayout] | None]:
        """Return the spaces, and the layout of the sensors if it is known."""
        if env is not None:
            if hasattr(env, "possible_agents"):
                raise UnityGymError(
                    f"OnnxPolicy needs one behavior, and a {type(env).__name__} has agents of several: pass "
                    "spec=env.behavior_specs[name] instead of env"
                )
            (observation_space, actions), unity = agent_spaces(env), unity_behavior(env)
            return observation_space if unity else _channels_first(observation_space), actions, unity
        if spec is None:
            spec, observations = self._declared_spec(), "sensors"
        layout = ObservationLayout(spec, observations)
        return layout.space, action_space(spec.action_spec), (spec, layout)

    @property
    def _sensor_inputs(self) -> dict[str, tuple[Any, ...]]:
        return {name: shape for name, shape in self._inputs.items() if name not in (_MASKS, _MEMORY_IN)}

    def _declared_spec(self) -> BehaviorSpec:
        sensors = [
            ObservationSpec(shape, (DimensionProperty.NONE,) * len(shape), ObservationType.DEFAULT, name)
            for name, shape in sorted(self._sensor_inputs.items(), key=lambda entry: (len(entry[0]), entry[0]))
        ]
        if self.version == 2 and self._declared("discrete"):
            raise self._error("is of version 2, which does not contain the branches: give OnnxPolicy env or spec")
        continuous = sum(self._declared("continuous"))
        return BehaviorSpec(sensors, ActionSpec(continuous, tuple(self._declared("discrete"))))

    def _declared(self, kind: str) -> list[int]:
        """Return the size of the continuous actions, or of each branch (version 3), or of all together (version 2)."""
        if kind not in self._action_outputs:
            return []
        name = "action_output_shape" if self._action_outputs[kind] == "action" else f"{kind}_action_output_shape"
        return [int(size) for size in self._constants.get(name, ())]

    def _check_sensors(self) -> None:
        sensors = self.spec.observation_specs
        expected = self._sensor_inputs
        actual = {
            name: sensors[where[0]].shape if len(where) == 1 else (sum(sensors[index].shape[0] for index in where),)
            for name, where in self._feeds.items()
        }
        if expected.keys() == actual.keys() and all(_fits(expected[name], actual[name]) for name in expected):
            return
        lines = []
        for name in {**expected, **actual}:
            names = ", ".join(repr(sensors[index].name) for index in self._feeds.get(name, ()))
            fits = name in expected and name in actual and _fits(expected[name], actual[name])
            lines.append(
                f"  {name}: the file takes {expected.get(name, 'nothing')}, the environment returns "
                f"{actual.get(name, 'nothing')} {f'({names})' if names else ''}{'' if fits else ' ← differs'}"
            )
        raise self._error("observes other sensors than the environment has:\n" + "\n".join([*lines, _REMEDY]))

    def _is_transposed(self, name: str) -> bool:
        """Return whether a file takes the entities of an input in the layout of Unity's former engine, Barracuda.

        Trainers before 1.0 exported for Barracuda, which swapped the axes of each two-dimensional observation. Such
        files start with a Transpose that swaps them back and a Reshape to the declared shape.

        :raises UnityGymError: If the file transposes the input in any other way.
        """
        shape = self._inputs[name]
        graph = self._model.graph
        readers = [node for node in graph.node if name in node.input]
        if len(shape) != 2 or not any(node.op_type == "Transpose" for node in readers):
            return False
        tensors = {constant.name: constant for constant in graph.initializer}
        tensors |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
        swapped = [_reshapes_back(node, graph, tensors, shape) for node in readers if node.op_type != "Shape"]
        if not all(swapped):
            raise self._error(
                f"transposes the entities of {name} in an unknown way, so that their layout cannot be determined: "
                "export it again with ML-Agents 1.0 or later"
            )
        return True

    def _check_memory(self) -> None:
        declared, has_output = self._inputs.get(_MEMORY_IN), _MEMORY_OUT in self._outputs
        if (declared, has_output) != ((1, self.memory_size) if self.memory_size else None, bool(self.memory_size)):
            raise self._error(
                f"is at odds with itself: memory_size {self.memory_size}, {_MEMORY_IN} {declared}, "
                f"{_MEMORY_OUT} {'there' if has_output else 'missing'}. Export it again"
            )

    def _check_actions(self) -> None:
        action = self.spec.action_spec
        branches = list(action.discrete_branches)
        expected = (sum(self._declared("continuous")), self._declared("discrete"))
        actual = (action.continuous_size, [sum(branches)] if self.version == 2 and branches else branches)
        if expected != actual:
            form = "{} continuous actions and discrete branches of {}"
            raise self._error(
                f"is incompatible with the environment: it returns {form.format(*expected)}, the environment "
                f"takes {form.format(*actual)}"
                + (" (in version 2, the sum of the branches). " if self.version == 2 and branches else ". ")
                + _REMEDY
            )
        low, high = self._adapter.low, self._adapter.high
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise self._error(
                f"gives continuous actions in −1…1, which do not stretch to the bounds {low.tolist()} to "
                f"{high.tolist()} of the environment: bound its action space"
            )

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """Return the actions for one observation or a batch of n, in the form of the action space.

        :param observation: Observation or batch of observations, in the form of the observation space.
        :param state: Recurrent state that the last call returned; None at the start, and without recurrence.
        :param episode_start: Agents whose recurrent state is reset, bool (n,).
        :param deterministic: Return the most likely actions. Files without this output are run without their noise.
            That output of Unity's SAC lacks the tanh, as in Unity: continuous actions may be outside [-1, 1].
        :param action_masks: Action masks, bool (n, sum of branches), True = allowed.
        :return: Actions, and the recurrent state for the next call.
        :raises ValueError: If the observation does not have the shape of the observation space.
        :raises UnityGymError: If a recurrent policy gets no state in mid-episode, or `action_masks` has a wrong shape.
        """
        if isinstance(observation, dict):
            parts = self.observation_space.spaces if isinstance(self.observation_space, spaces.Dict) else {}
            batch: Any = {
                key: maybe_transpose(np.asarray(part), parts.get(key, self.observation_space))
                for key, part in observation.items()
            }
        else:
            batch = maybe_transpose(np.asarray(observation), self.observation_space)
        is_batch = is_vectorized_observation(batch, self.observation_space)
        if not is_batch:
            batch = {key: part[np.newaxis] for key, part in batch.items()} if isinstance(batch, dict) else batch[None]
        observations = self._adapter.sensor_arrays(batch)
        n = len(observations[0])
        memory = memory_before(state, episode_start, n, self.memory_size)
        masks = allowed_actions(action_masks, n, self.spec.action_spec.discrete_branches)
        chosen, memory = self.select_actions(observations, masks, memory, deterministic)
        actions = self._adapter.actions(chosen)
        if not is_batch:
            actions = {key: part[0] for key, part in actions.items()} if isinstance(actions, dict) else actions[0]
        return actions, (memory,) if self.memory_size else None

    def select_actions(
        self, observations: Sequence[Array], masks: Array, memory: Array, deterministic: bool = False
    ) -> tuple[ActionTuple, Array]:
        """Return the actions of n agents for the environment, and the next recurrent states.

        See `AgentPolicy.select_actions`.
        """
        seen = [_floats(array) for array in observations]
        inputs = {
            name: seen[where[0]] if len(where) == 1 else np.concatenate([seen[index] for index in where], 1)
            for name, where in self._feeds.items()
        }
        for name in self._transposed:
            entities, size = inputs[name].shape[1:]
            inputs[name] = inputs[name].reshape(-1, size, entities).transpose(0, 2, 1)
        if _MASKS in self._inputs:
            inputs[_MASKS] = masks.astype(np.float32)
        if self.memory_size:
            inputs[_MEMORY_IN] = memory.reshape(len(memory), 1, -1)
        outputs = self._run(inputs, deterministic)
        if self.memory_size:
            memory = outputs[_MEMORY_OUT].reshape(len(memory), -1)
        return self._action_tuple(outputs, masks, deterministic), memory

    def _run(self, inputs: dict[str, Array], deterministic: bool) -> dict[str, Array]:
        """Return the actions of each kind and the recurrent state."""
        names, session = self._action_outputs, self._session
        if deterministic:
            best = {kind: f"deterministic_{name}" for kind, name in names.items()}
            if self._outputs.issuperset(best.values()):
                names = best
            else:
                if self._noiseless is None:
                    self._noiseless = self._start_session(_without_noise(self._model))
                session = self._noiseless
        if self.memory_size:
            names = names | {_MEMORY_OUT: _MEMORY_OUT}
        return dict(zip(names, session.run(list(names.values()), inputs), strict=True))

    def _action_tuple(self, outputs: dict[str, Array], masks: Array, deterministic: bool) -> ActionTuple:
        continuous, discrete = map(outputs.get, _KINDS)
        if continuous is not None:
            low, high = self._adapter.low, self._adapter.high
            continuous = (high + low) / 2 + continuous.reshape(len(continuous), -1) * ((high - low) / 2)
        if discrete is not None and self.version == 2:
            # Log-probabilities of all branches. The argmax after adding Gumbel noise is a sample (Gumbel 1954).
            scores = np.where(masks, discrete, -np.inf)
            if not deterministic:
                scores += self._rng.gumbel(size=scores.shape)
            ends = np.cumsum([0, *self.spec.action_spec.discrete_branches]).tolist()
            discrete = np.stack([scores[:, start:end].argmax(1) for start, end in pairwise(ends)], 1)
        return ActionTuple(continuous, discrete)


def _channels_first(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space in which SB3's models observe images: with the channels first."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, _channels_first(part)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Box) and is_image_space(space) and not is_image_space_channels_first(space):
        return VecTransposeImage.transpose_space(space)
    return space


def _feeds(sensors: Sequence[ObservationSpec], version: int) -> dict[str, list[int]]:
    """Return the indices of the sensors that are concatenated to each input of a file."""
    if version == 3:
        return {f"obs_{index}": [index] for index in range(len(sensors))}
    feeds: dict[str, list[int]] = {}
    images = 0
    for index, sensor in enumerate(sensors):
        if len(sensor.shape) == 1:
            feeds.setdefault("vector_observation", []).append(index)
        elif sensor.is_visual:
            feeds[f"visual_observation_{images}"] = [index]
            images += 1
        else:
            feeds[f"obs_{index}"] = [index]
    return feeds


def _reshapes_back(
    node: onnx.NodeProto, graph: onnx.GraphProto, tensors: dict[str, onnx.TensorProto], shape: tuple[Any, ...]
) -> bool:
    """Return whether a node swaps the last two axes and all nodes that follow reshape the result to `shape`."""
    if node.op_type != "Transpose" or [list(attribute.ints) for attribute in node.attribute] != [[0, 2, 1]]:
        return False
    followers = [other for other in graph.node if node.output[0] in other.input]
    return bool(followers) and all(
        other.op_type == "Reshape"
        and other.input[1] in tensors
        and tuple(numpy_helper.to_array(tensors[other.input[1]])[1:]) == shape
        for other in followers
    )


def _fits(declared: tuple[Any, ...], shape: tuple[int, ...]) -> bool:
    """Return whether a sensor has the shape of an input, which may have dynamic dimensions."""
    return len(declared) == len(shape) and all(
        not isinstance(expected, int) or expected == actual for expected, actual in zip(declared, shape, strict=True)
    )


def _floats(array: Array) -> Array:
    """Return the array as float32, with images in `[0, 1]`, as the inputs require."""
    return array.astype(np.float32) / 255 if array.dtype == np.uint8 else array.astype(np.float32, copy=False)


def _remove_empty_inputs(graph: onnx.GraphProto) -> None:
    """Remove the unread inputs without values, which the exporter of newer torch keeps.

    These are the masks of a behavior without branches and the recurrent state of a policy without memory.
    """
    read = {name for node in graph.node for name in node.input}
    for entry in list(graph.input):
        sizes = [size.dim_value for size in entry.type.tensor_type.shape.dim if size.HasField("dim_value")]
        if 0 in sizes and entry.name not in read:
            graph.input.remove(entry)


def _put_agents_first(graph: onnx.GraphProto) -> None:
    """Swap the first two axes of a recurrent state that the LSTM reads as it is, (1, agents, size).

    Older trainers exported so, although they declared (agents, 1, size): such files run for a single agent only.
    """
    sources = {output: node.input[0] for node in graph.node if node.op_type == "Slice" for output in node.output}
    states = {state for node in graph.node if node.op_type == "LSTM" for state in node.input[5:6]}
    while cut := states & sources.keys():
        states = states - cut | {sources[state] for state in cut}
    if _MEMORY_IN not in states:
        return
    inner = {name: f"{name}_of_lstm" for name in (_MEMORY_IN, _MEMORY_OUT)}
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [inner.get(name, name) for name in names]
    first, last = (
        onnx.helper.make_node("Transpose", [source], [target], perm=[1, 0, 2])
        for source, target in ((_MEMORY_IN, inner[_MEMORY_IN]), (inner[_MEMORY_OUT], _MEMORY_OUT))
    )
    graph.node.insert(0, first)
    graph.node.append(last)


def _without_noise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the same model with zero noise and the most likely discrete actions."""
    quiet = onnx.ModelProto()
    quiet.CopyFrom(model)
    for node in quiet.graph.node:
        if node.op_type == "RandomNormalLike":
            node.CopyFrom(onnx.helper.make_node("Sub", [node.input[0]] * 2, node.output))
        elif node.op_type == "Multinomial":
            node.CopyFrom(onnx.helper.make_node("ArgMax", node.input, node.output, axis=1, keepdims=1))
    return quiet


def _first_line(error: Exception) -> str:
    """Return the first line of the message; the rest describes internals of another library."""
    return str(error).strip().partition("\n")[0]
