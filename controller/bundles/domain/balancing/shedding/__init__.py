"""Shedders: select the bundles that leave their broker. All have the interface of `shedder`; `balance` finds one by name."""
