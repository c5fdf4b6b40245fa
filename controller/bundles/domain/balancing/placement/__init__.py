"""Selection of the destination of a bundle: the permitted brokers (`occupancy`), and the choice among them (`rules`)."""
