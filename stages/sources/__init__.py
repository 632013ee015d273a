"""Where checkpoints come from, what they hold, and the proof that they are whole. No torch, no transformers."""
