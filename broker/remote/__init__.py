"""Who has joined the broker of a scaled stack from elsewhere: gateways and stub hosts. The rest of the broker knows
nothing of it: a server that is one process needs none of this."""
