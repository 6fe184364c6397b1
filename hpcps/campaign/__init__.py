"""Playing many runs: one launch after another or several at a time, whatever becomes of each."""
