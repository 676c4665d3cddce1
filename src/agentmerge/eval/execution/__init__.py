"""Running programs that a model wrote: in child processes that can do as little as the system allows.

`pool` asks `children`, `child` is what one of them is, `confine` what it gives up, `isolation` what this system offers.
The process that holds the model runs none of them, ever.
"""
