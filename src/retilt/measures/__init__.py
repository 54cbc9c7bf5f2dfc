"""Bounded functions of one row, their exact sums and their sensitivities."""
