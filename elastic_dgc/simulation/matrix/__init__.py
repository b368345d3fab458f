"""The fault matrix: every combination of fault, point, group and recipe that makes sense, as scenarios by name."""
