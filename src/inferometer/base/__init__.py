"""What knows nothing of language models: errors, units, formulas, files, ranges."""
