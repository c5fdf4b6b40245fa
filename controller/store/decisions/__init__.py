"""What is to be decided, on what, and what was decided: evaluations, situations, the ledger."""
