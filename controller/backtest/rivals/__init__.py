"""The rules of other systems, each restated as one small pure function, for comparison only.

They are not the code of those systems. Each module names its source and its omissions. A segment's capacity is the
split threshold of the policy; the other system calls it target, limit or shard. All of these rules use equal widths,
because none of them knows the distribution of the keys. They leave busy segments unchanged and create at most
`max_segments`; their refusals have the names of `pip483`.
"""
