"""Hooks that attach to a model: which layer, which tensor, which axes, which mask."""
