"""The generators of the paper behind one protocol, each in the environment that it needs."""
