"""The OpenAPI document of this server, made of the wire types."""
