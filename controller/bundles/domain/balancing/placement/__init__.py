"""Where a bundle goes: which brokers may take it (`occupancy`), and which of them does (one file for each rule)."""
