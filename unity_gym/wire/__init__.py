"""Conversion between bytes of the ML-Agents protocol and arrays."""
