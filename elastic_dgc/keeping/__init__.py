"""What outlives a process: storage, the serializer of state, and durable checkpoints."""
