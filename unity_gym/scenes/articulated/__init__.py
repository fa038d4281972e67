"""Bodies with limbs: the shared code of Crawler, Worm and Walker.

- `skeleton.py` describes a body: its parts, and the joints between them, in Unity's terms.
- `physics.py` moves many such bodies with MuJoCo on all cores, and returns poses and velocities in Unity's axes.
- `contacts.py` replaces MuJoCo's contacts by speculative ones like PhysX's.
- `scene.py` is the base class of the three scenes: the target, the orientation cube, ground contacts, rewards.

Axes are Unity's unless stated otherwise: left-handed, x right, y up, z forward, in meters. Quaternions are
(x, y, z, w).
"""
