"""The commands of `cleave`, one file for each noun, and the parts they share."""
