"""The sub-commands of `cleave`, one file a noun."""
