"""Lensmill: every checkpoint of a training run as a verified pair of ONNX graphs."""
