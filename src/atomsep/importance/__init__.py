"""Charges made visible: on images, in sentences, over a corpus."""
