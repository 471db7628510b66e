"""Atom modeling inside the trainers of other libraries."""
