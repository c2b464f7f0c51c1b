"""Verdicts and searches: does it fit, and what is the largest that does."""
