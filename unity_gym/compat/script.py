"""The running script, as the main module that processes started by spawn or forkserver import by its name."""

from unity_gym.compat.launch import script_code

if __name__ in ("__main__", "__mp_main__"):
    exec(script_code(globals()))
