"""The running script, as the main module that processes started by spawn or forkserver import by its name."""

from unity_gym.compat.launch import script_code

exec(script_code(globals()))
