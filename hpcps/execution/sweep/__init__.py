"""Execute many runs, one launch after another or several at a time; failures do not stop the others."""
