"""Tables, figures, the demo: what is made of results."""
