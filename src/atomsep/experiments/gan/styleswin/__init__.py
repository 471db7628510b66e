"""StyleSwin, the generator of the paper's faces: its networks and their training."""
