"""Links from a task to a page of Cleave."""
