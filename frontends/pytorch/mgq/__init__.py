"""PyTorch's side of mgq: models, their export to ONNX, and data for them."""
