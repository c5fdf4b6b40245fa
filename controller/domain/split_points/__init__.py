"""Where to cut a segment, apart from whether: one module a way.

Production cuts at the `midpoint`. `weighted`, and `registry` which chooses a way by name, are run by tests only: no
policy has a knob for it yet. A split by observed load will build on both.
"""
