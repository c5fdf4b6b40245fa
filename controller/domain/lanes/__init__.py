"""The three lanes of an evaluation (PIP-483, PIP-486), one a module, and the ground they share."""
