"""Serving as it happens: requests arrive, wait, are batched step by step, and leave."""
