"""Topics and what belongs to one: its layout, subscriptions, consumers, drains, policies and logs."""
