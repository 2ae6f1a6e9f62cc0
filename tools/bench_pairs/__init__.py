"""Decode of two commits in turn on one machine: `make bench-pairs`."""
