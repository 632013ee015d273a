"""Tiny models of every causal type that transformers knows, and a table of how each fares."""
