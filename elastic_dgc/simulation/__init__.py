"""The protocol in virtual time: real numerics, real state machines, a network and machines that fail on purpose."""
