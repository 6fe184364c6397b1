"""Puts this folder on the path: `from installed import BACKEND` in any test."""

import signal

# A shell without job control starts background commands with SIGINT ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
