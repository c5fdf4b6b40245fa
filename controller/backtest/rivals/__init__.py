"""The rules of other systems, each restated as one small pure function, to compare with and for nothing else.

They are not those systems' own code. Each module says what it was restated from and what is left out. A segment's
capacity is the split threshold of the policy: what the other system calls its target, its limit or its shard. All of
them act on equal widths, since none sees how the keys are spread. They leave alone what is in flight, and go up to
`max_segments`; where they refuse something they name it as `pip483` does.
"""
