"""Demonstrations: convert Unity's `.demo` files to arrays of transitions, and back.

A file is a header, the behavior's actions, and one record per decision: the agent's observations, and the reward and
done flag caused by its last action. A record that is done holds the last observation of an episode; no action follows
it, whatever the file contains.

In files of Unity's recorder, the action taken on a record's observation is in the **next** record. In all versions the
recorder writes, before the agent acts, the action that led to the observation. Unity's own trainers read it as the
action of the same record, and so learn to act one decision late. The action is in the **same** record in files of
`DemonstrationWriter`. It is also there in old files that Unity converted, such as Expert3DBall, whose last record has
no action.

A record that is done contains the **last** observation of its episode. The first packages reset the agent before they
wrote it. There it contains the **first** observation of the next episode, on which the agent acts, and the last
observation of the episode is not in the file.
"""

from unity_gym.demonstrations.data import SUFFIX, Demonstration, DemonstrationHeader, fit
from unity_gym.demonstrations.reading import load
from unity_gym.demonstrations.recording import RecordDemonstration, record
from unity_gym.demonstrations.writing import DemonstrationWriter, save

__all__ = [
    "SUFFIX",
    "Demonstration",
    "DemonstrationHeader",
    "DemonstrationWriter",
    "RecordDemonstration",
    "fit",
    "load",
    "record",
    "save",
]
