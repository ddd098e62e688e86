"""Which deployment to run: every legal plan priced, the best ones simulated, and why the others lost."""
