"""What the papers claim, measured here.

There is one file a system. Results are saved while they come in, and verdicts follow a stated rule.
"""
