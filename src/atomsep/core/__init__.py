"""The maths: from tokens to statistics to the loss, in one autograd node."""
