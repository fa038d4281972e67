"""Stable-Baselines3 algorithms, policies and reward signals for Unity environments."""
