"""What steps cost on this machine, measured, and what is fastest by that (``specwb tune``)."""
