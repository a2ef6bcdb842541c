"""Why the verifier is right: what it must catch, what it must spare, and how far its bands are from both.

Every experiment is an audit of a corpus whose answers are known beforehand (`specimens`).
"""
