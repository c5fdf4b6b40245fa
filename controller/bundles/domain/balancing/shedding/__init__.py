"""Shedders: select the bundles that leave their broker. All have the interface of `shedder`; `registry` finds one by name."""
