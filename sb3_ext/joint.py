"""`JointTraining`: the loop that alternates between samplers, which let agents act, and learners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from sb3_ext.console import LOG
from sb3_ext.experience import ROWS_PER_SAMPLER
from sb3_ext.hardware import update_size, use_threads
from sb3_ext.learner import Learner
from sb3_ext.placement import PlacedSampler, wait_for_any
from sb3_ext.sampler import Request, Samples, plain_name
from sb3_ext.self_play import number_and_name
from unity_gym.specs import BehaviorSpec

_ROUND = 8  # updates after which samplers stop once if they do not wait for each other


class JointTraining:
    """Joint training of samplers and learners of all behaviors of a scene.

    A subclass builds the learners and defines further events.

    :param samplers: Samplers of the agents.
    """

    def __init__(self, samplers: Sequence[PlacedSampler]) -> None:
        self._samplers = samplers
        self._learners: dict[str, Learner] = {}  # by behavior, without a team
        self._published: dict[str, int] = {}
        self._learning_team = ""  # team of the behaviors with self-play
        self._finished: dict[str, set[int]] = defaultdict(set)  # samplers that have returned their last timesteps
        self._appeared: dict[str, BehaviorSpec] = {}  # behaviors without a learner yet
        self._complete: set[str] = set()  # behaviors whose last timesteps were used for training

    def _build_learner(self, name: str, spec: BehaviorSpec) -> Learner:
        """Build the learner of a behavior that has appeared.

        :raises UnityGymError: If it cannot have one.
        """
        raise NotImplementedError

    def _steps_to_event(self, learner: Learner) -> int:
        """Return the timesteps of a behavior until its next event."""
        return learner.steps_to_event

    @property
    def _until_episode(self) -> bool:
        """Whether the end of an episode may be an event."""
        return False

    def _timing(self, part: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Add the duration of the context to this part of the work."""
        return nullcontext()

    def _take_statistics(self, samples: Samples) -> None:
        """Process the statistics of samples."""

    def _take_update(self, learner: Learner) -> None:
        """Process the records of a behavior's updates."""

    def _proceed(self) -> bool:
        """Publish the weights of finished updates, and return whether to continue."""
        for learner in self._learners.values():
            if learner.model.threaded:
                learner.model.finish_update(wait=False)
                self._publish(learner)
        return True

    def _start(self) -> None:
        """Build the learners of the behaviors that exist at the start."""
        for sampler in self._samplers:
            self._add_behaviors(sampler.appeared())

    def _add_behaviors(self, appeared: Mapping[str, BehaviorSpec]) -> None:
        """Add a learner for each new behavior."""
        for team in sorted(appeared, key=number_and_name):
            name = plain_name(team)
            if name not in self._learners:
                self._add_learner(name, appeared[team])
            learner = self._learners[name]
            if team in learner.teams:
                continue
            if learner.teams and learner.self_play is None:
                LOG.warning(
                    "%s and %s are teams of one behavior without self_play: they learn together, with one policy. To "
                    "let them play against each other, give a block self_play under behaviors.%s",
                    learner.teams[0],
                    team,
                    name,
                )
            learner.teams.append(team)
            if learner.self_play is not None and not self._learning_team:
                self._set_learning_team(team)

    def _add_learner(self, name: str, spec: BehaviorSpec) -> None:
        learner = self._build_learner(name, spec)
        if self._learners or learner.model.num_timesteps:
            learner.model.reseed_actions(name)
        self._learners[name] = learner
        if learner.teacher in self._learners:
            learner.require_teacher(self._learners[learner.teacher])
        for student in self._students(name):
            student.require_teacher(learner)
        self._published[name] = learner.model.version
        for sampler in self._samplers:
            sampler.assign(learner)
        models = [learner.model for learner in self._learners.values()]
        sizes = [update_size(model.policy, model.batch_size) for model in models]
        use_threads(sizes, reserved=max(model.reserved_cores for model in models))

    def _set_learning_team(self, team: str, reset: bool = False) -> None:
        self._learning_team = team
        for sampler in self._samplers:
            sampler.set_team(team, reset, self._proceed)

    @property
    def _acting(self) -> list[Learner]:
        """Learners whose agents act with the current policy; opponents play for those of the others."""
        turn = plain_name(self._learning_team)
        return [learner for learner in self._learners.values() if learner.self_play is None or learner.name == turn]

    def _students(self, name: str) -> list[Learner]:
        """Return the learners that still learn from the decisions of this behavior."""
        return [learner for learner in self._learners.values() if learner.teacher == name and learner.learns]

    def _request(self) -> Request:
        """Return the limits of each sampler: its share of the decisions until the next event."""
        n = len(self._samplers)
        collect, limits = {}, {}
        for learner in self._acting:
            if learner.learns:
                collect[learner.name] = max(-(-learner.model.missing // n), 1)
                limits[learner.name] = max(-(-self._steps_to_event(learner) // n), 1)
                self._finished[learner.name].clear()  # from a previous turn
            elif learner.name in self._complete and (students := self._students(learner.name)):
                collect[learner.name] = max(-(-min(student.model.missing for student in students) // n), 1)
        return Request(collect, limits, self._until_episode)

    def _publish(self, learner: Learner) -> None:
        if self._published[learner.name] != learner.model.version:
            self._published[learner.name] = learner.model.version
            self._take_update(learner)
            for sampler in self._samplers:
                sampler.publish(learner)

    def _collect(self, request: Request) -> None:
        """Let all samplers collect, and process their samples in a fixed order."""
        for sampler in self._samplers:
            sampler.start(request)
        for number, sampler in enumerate(self._samplers):
            self._take(number, sampler.result(self._proceed))
        self._add_appeared()

    def _stop_samplers(self) -> None:
        """Stop the samplers that still collect after an error, and process their samples, except for further errors."""
        running = [number for number, sampler in enumerate(self._samplers) if sampler.is_collecting]
        for number in running:
            self._samplers[number].stop()
        for number in running:
            with suppress(Exception):
                self._take(number, self._samplers[number].result(lambda: False))

    def _add_appeared(self) -> None:
        """Add the learners of new behaviors while no sampler collects."""
        appeared, self._appeared = self._appeared, {}
        self._add_behaviors(appeared)
        if appeared:
            for sampler in self._samplers:
                sampler.start_matches()

    @property
    def _is_overlapped(self) -> bool:
        """Whether samplers do not wait for each other: updates run in threads, without an event after each episode."""
        acting = self._acting
        return (
            len(self._samplers) > 1
            and not self._until_episode
            and any(learner.learns for learner in acting)
            and all(learner.model.threaded for learner in acting)
        )

    def _collect_and_update(self) -> None:
        """Collect and update until the next event that requires all samplers to stop.

        Samples are processed in the order in which samplers finish; each sampler restarts at once. This also ends after
        `_ROUND` updates.
        """
        ends = {
            learner.name: learner.model.num_timesteps + _ROUND * learner.model.decisions_at_once
            for learner in self._acting
        }
        under_way: dict[int, Request] = {}  # requests that are running, by number of the sampler
        continues = True
        while True:
            if continues and not self._proceed():
                continues = False
                for number in under_way:
                    self._samplers[number].stop()
            for number, sampler in enumerate(self._samplers):
                if number not in under_way and continues and not self._appeared:
                    request = self._next_request([*under_way.values()], ends)
                    if request is not None:
                        sampler.start(request)
                        under_way[number] = request
            if not under_way:
                break
            numbers = sorted(under_way)
            for position in wait_for_any([self._samplers[number] for number in numbers]):
                number = numbers[position]
                del under_way[number]
                for learner in self._learners.values():
                    learner.model.agents_wait_too = not under_way
                self._take(number, self._samplers[number].result(self._proceed))
                for learner in self._acting:
                    if learner.is_update_due:
                        self._update(learner)
        self._add_appeared()

    def _next_request(self, under_way: Sequence[Request], ends: Mapping[str, int]) -> Request | None:
        """Return the limits of a sampler while others are running; None if they suffice until the next event.

        :param ends: Per behavior, the timesteps at which all samplers stop in any case.
        """
        n = len(self._samplers)
        collect, limits = {}, {}
        for learner in self._acting:
            if learner.learns:
                name = learner.name
                left = min(self._steps_to_event(learner), ends[name] - learner.model.num_timesteps)
                left -= sum(request.limits.get(name, 0) for request in under_way)
                if left <= 0:
                    return None
                collect[name] = share = -(-learner.model.decisions_at_once // n)
                # Slightly more, as the outcomes of the last decisions are missing.
                limits[name] = min(-(-left // (n - len(under_way))), share + share // 8 + 1)
                self._finished[name].clear()  # from a previous turn
        return Request(collect, limits) if collect else None

    def _take(self, number: int, samples: Samples) -> None:
        """Process the samples of a sampler."""
        for name, decisions in samples.stored.items():
            if name not in self._complete:  # a complete behavior continues to act for its students
                self._learners[name].model.count(decisions)
        for name, trajectories in samples.trajectories.items():
            learner = self._learners[name]
            trajectories.shift_rows(number * ROWS_PER_SAMPLER)
            if name not in self._complete:
                learner.model.add(trajectories)
            for student in self._students(name):
                student.watch(trajectories, learner)
        for name, episodes in samples.episodes.items():
            self._learners[name].take_episodes(episodes)
        for match in samples.matches:
            opponents = [(self._learners[name], step, file) for name, step, file in match.opponents]
            self._learners[match.behavior].rate(match.score, opponents)
        self._take_statistics(samples)
        for name in samples.finished:
            self._finished[name].add(number)
        self._appeared |= samples.appeared

    def _step(self) -> None:
        """Collect until the next event, and process it."""
        if self._is_overlapped:
            self._collect_and_update()
        else:
            self._collect(self._request())
        self._learn_from_rest()
        for learner in self._acting:
            if learner.self_play is not None and learner.self_play.save_if_due():
                for sampler in self._samplers:
                    sampler.publish_snapshot(learner)
            if learner.is_update_due:
                self._update(learner)

    def _update(self, learner: Learner) -> None:
        with self._timing("update"):
            learner.update()
            self._publish(learner)

    def _finish_update(self, learner: Learner) -> None:
        """Wait for a running update, and publish its result."""
        learner.model.finish_update()
        self._publish(learner)

    def _learn_from_rest(self) -> None:
        """Train learners that have completed their timesteps on the last ones, once the outcomes are available."""
        for learner in self._learners.values():
            if not learner.learns and len(self._finished[learner.name]) == len(self._samplers):
                self._finished[learner.name].clear()
                self._complete.add(learner.name)
                if learner.model.has_experience:
                    self._update(learner)

    @property
    def _learns(self) -> bool:
        """Whether any behavior has timesteps left."""
        return any(learner.learns for learner in self._learners.values())

    def _learn_the_last(self) -> None:
        """Wait for the outcomes of the last decisions, and finish all updates."""
        self._collect(Request({}, {}))
        for learner in self._learners.values():
            if learner.name not in self._complete:  # a sampler that was lost meanwhile has no last timesteps
                self._finished[learner.name].update(range(len(self._samplers)))
        self._learn_from_rest()
        for learner in self._learners.values():
            self._finish_update(learner)

    def _change_team(self) -> None:
        """Switch the learning team if it is due, or if the current one has completed its timesteps."""
        if not self._learning_team:
            return
        learner = self._learners[plain_name(self._learning_team)]
        assert learner.self_play is not None
        if not learner.self_play.poll_team_change() and learner.learns:
            return
        teams = sorted(
            (team for other in self._learners.values() if other.self_play is not None for team in other.teams),
            key=number_and_name,
        )
        now = teams.index(self._learning_team)
        following = (team for team in teams[now + 1 :] + teams[:now] if self._learners[plain_name(team)].learns)
        if (team := next(following, None)) is not None:
            self._set_learning_team(team, reset=True)
