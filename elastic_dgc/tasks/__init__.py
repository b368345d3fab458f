"""What is trained: a task is a small class that names model, loss, data and evaluation."""
