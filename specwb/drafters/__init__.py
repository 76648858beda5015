"""What proposes: one file a method over shared pieces."""
