"""What proposes draft tokens: one file a method, over pieces that several of them share."""
