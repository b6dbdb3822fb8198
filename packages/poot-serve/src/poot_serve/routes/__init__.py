"""One module a route; each reads, checks and hands on."""
