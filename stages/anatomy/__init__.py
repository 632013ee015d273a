"""What is inside a decoder: its blocks, the residual stream between them, the head after the last one."""
