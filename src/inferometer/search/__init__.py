"""Which deployment to run: every legal plan estimated, the best ones simulated, and why the others lost."""
