"""The drafters: one file per method, on top of parts that several methods share."""
