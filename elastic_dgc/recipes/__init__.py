"""Whole configurations by name, with the schedules of their papers; any field can be replaced."""
