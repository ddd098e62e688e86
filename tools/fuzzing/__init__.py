"""Inputs that nobody would type, and laws that every answer keeps: the parts of `tools/fuzz.py`."""
