"""Conversations with pictures -> training data, for mgq-prepare."""
