"""Live servers: requests sent, tokens timed."""
