"""The synchronous protocol: rounds that everyone agrees on."""
