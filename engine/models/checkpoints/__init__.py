"""Checkpoint files: containers, number formats, families of models, pulling and writing."""
