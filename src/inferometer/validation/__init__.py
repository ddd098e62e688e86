"""Predicted against measured, and a calibration from the difference."""
