"""The pages of docs/reference, one module for each; tools/reference.py writes them."""
