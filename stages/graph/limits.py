"""What the graphs are pinned to, so that ONNX Runtime's web build runs them."""

OPSET = 18
# ort-web refuses an IR above 13; Python's ONNX Runtime does not, so no Python run would show it.
IR_VERSION = 10
# Protobuf's limit for one message; a larger graph needs external data.
MESSAGE_LIMIT = 2**31 - 1
HALVES = ("backbone", "lens")
