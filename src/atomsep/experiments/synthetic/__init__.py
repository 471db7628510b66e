"""The paper's Gaussian mixtures."""
