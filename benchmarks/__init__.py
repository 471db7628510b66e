"""Speed and memory, as ratios against named alternatives in the same run."""
