"""Shedders: select the bundles that leave their broker. One module for each shedder, all with the interface of `shedder`."""
