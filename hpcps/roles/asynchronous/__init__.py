"""The asynchronous protocol: nobody waits for others; server 0 gives every request its place in one log."""
