"""Sensors: what agents observe, for all agents at once."""

from unity_gym.scenes.sensors.sensor import ImageSensor, Sensor, StackingSensor, VectorSensor, wire_order

__all__ = ["ImageSensor", "Sensor", "StackingSensor", "VectorSensor", "wire_order"]
