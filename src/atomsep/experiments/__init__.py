"""Experiments: tasks, training, results on disk. Needs the extra `atomsep[experiments]`."""
