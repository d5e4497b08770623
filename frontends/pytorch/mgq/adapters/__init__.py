"""Trained weights on their way out of checkpoints of mgq executables, and back in."""
