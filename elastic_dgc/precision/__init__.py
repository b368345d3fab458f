"""Finite or not, equal or not: the checks that keep bad numbers out and replicas together. Pure torch."""
