"""A table over models of other libraries: does attaching work, and are the gradients exact?"""
