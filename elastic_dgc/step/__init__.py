"""One attempt as one transaction: compute, vote, exchange, apply, on state that flips."""
