"""Rules over fractions, the recovery of a rule's decisions, wrong rules, and closed forms."""
