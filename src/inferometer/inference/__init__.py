"""One plan: its request, latency, memory, report and advice."""
