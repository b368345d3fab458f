"""The trainer on Ray Train: the only part that knows Ray."""
