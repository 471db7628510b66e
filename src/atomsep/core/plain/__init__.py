"""The passes in plain PyTorch: they run everywhere, and the kernels must agree with them."""
