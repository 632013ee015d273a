"""Graphs: traced without weights, simplified, split from their weights, filled from a checkpoint, run."""
