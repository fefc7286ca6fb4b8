"""Methods with several stages a worker, passed in a loop or there and back."""
